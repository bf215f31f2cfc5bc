"""Without a CUDA device the kernels run under Triton's interpreter (tests/conftest.py). With one they run compiled, in
`make test-gpu`."""

from pathlib import Path

import pytest
import torch

ROOM = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if torch.cuda.is_available() and item.path.is_relative_to(ROOM) and item.path.name.startswith("test_triton"):
            item.add_marker(pytest.mark.gpu)
