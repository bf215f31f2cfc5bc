import pytest
import torch

from worker.replicas.base_loader import load_base


@pytest.fixture
def trainers(tiny_base):
    return [load_base(tiny_base, torch.device("cpu")).trainer for _ in range(2)]
