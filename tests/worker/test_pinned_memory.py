"""How processes allocate pinned memory: by several threads, unless an operator said otherwise."""

import os
import subprocess
import sys

import pytest
import torch

from worker.pinned_memory import allocate_by_threads

CORES = {0, 1, 2, 3, 4, 5}
OURS = "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": OURS}),
        ({"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": OURS}),
        (
            {"PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
            {"PYTORCH_ALLOC_CONF": OURS, "PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "pinned_num_register_threads:2"},
            {"PYTORCH_ALLOC_CONF": "pinned_num_register_threads:2"},
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:True,{OURS}"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
            {"PYTORCH_ALLOC_CONF": f"expandable_segments:True,{OURS}", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"},
        ),
        (
            {"PYTORCH_ALLOC_CONF": "pinned_use_cuda_host_register:False"},
            {"PYTORCH_ALLOC_CONF": "pinned_use_cuda_host_register:False"},
        ),
    ],
)
def test_an_operators_settings_stay(said: dict[str, str], becomes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: CORES)
    environment = dict(said)
    allocate_by_threads(environment)
    allocate_by_threads(environment)
    assert environment == becomes


@pytest.mark.gpu
def test_pytorch_understands_it() -> None:
    """An unknown setting would be an error as soon as memory is pinned."""
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    allocate_by_threads(environment)
    program = "import torch; x = torch.full((1 << 20,), 3, pin_memory=True); print(x.is_pinned(), x.cuda().sum().item())"
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"True {3 << 20}\n"
    assert torch.cuda.is_available()
