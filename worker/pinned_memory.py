"""Pinned host memory that several threads allocate, set through the environment of processes that import torch.

By itself PyTorch has the driver allocate and pin a block, page by page: 1.2 to 1.8 GB/s on the host of an H200, and a training
loop waits for it when it first copies an adapter's best weights, and at a checkpoint. Blocks whose pages 8 threads touch, and
which are registered then, come at 6.2 GB/s. Such pages are the process's own: a container's memory limit counts them. PyTorch
keeps a pool of 128 threads for it, which are idle else. Knows no torch.
"""

import os
from collections.abc import MutableMapping

VARIABLES = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"  # PyTorch reads the second where the first is not set
_SWITCH, _THREADS = "pinned_use_cuda_host_register", "pinned_num_register_threads"
_MOST_THREADS = 8


def allocate_by_threads(environment: MutableMapping[str, str]) -> None:
    """Add to what the environment tells the allocators, unless it says how they register memory."""
    name = next((name for name in VARIABLES if name in environment), VARIABLES[0])
    said = environment.get(name, "")
    if _SWITCH in said or _THREADS in said:
        return
    cores = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    threads = 1 << (cores.bit_length() - 1)  # PyTorch takes powers of two
    ours = f"{_SWITCH}:True,{_THREADS}:{threads}"
    environment[name] = f"{said},{ours}" if said else ours
