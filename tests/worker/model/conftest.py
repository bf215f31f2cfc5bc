"""One thread unless a test asks for more: results depend on it in the last bit, and test machines are shared."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before, wanted = torch.get_num_threads(), getattr(request, "param", 1)
    torch.set_num_threads(wanted)
    yield wanted
    torch.set_num_threads(before)
