"""Without a CUDA device the kernels run under Triton's interpreter, which must be chosen before they are imported. With one
they run compiled, in `make test-gpu`."""

import os
from pathlib import Path

import pytest
import torch

ROOM = Path(__file__).parent

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if torch.cuda.is_available() and item.path.is_relative_to(ROOM) and item.path.name.startswith("test_triton"):
            item.add_marker(pytest.mark.gpu)
