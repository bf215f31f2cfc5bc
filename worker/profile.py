"""Measures what an executor's memory model needs (ALTO A.3): M = k0 + k1 x tokens + k2 x rows.

On a GPU the peak of two synthetic steps is read from the allocator. On a CPU, whose peaks belong to the whole process, the
tensors that the backward pass keeps are counted. Rows cost what the arena and the host copies of an adapter take.
"""

import numpy as np
import torch
from torch import Tensor

from worker.devices import available_memory
from worker.model.batch import Example, Segment
from worker.model.trainer import Trainer
from worker.policy.admission import Capacity, MemoryModel
from worker.settings import Settings

_PROBES = (256, 768)  # tokens of the two synthetic steps
_TEMPORARIES = 1.25  # on a CPU, the resident peak over what the backward keeps (measured 1.2 on the example's base)
_HOST_COPIES = 5 * 4  # bytes a column of one row: best weights, and the weights, moments and best of a checkpoint under way
_PARK_SHARE = 8  # a CPU executor keeps this part of its memory for parked jobs
_STEP_TOKENS = {"cpu": 4096, "cuda": 16384}


def measure(trainer: Trainer, settings: Settings) -> Capacity:
    """The capacity of an executor whose base is loaded and whose arena is still empty."""
    arena = trainer.arena
    device = trainer.backbone.device
    arena.grow(max(arena.rows, 8))
    slot = arena.attach(8, 8.0)
    few, many = (_step_bytes(trainer, [Segment(slot, _examples(tokens, trainer), 1 / tokens)]) for tokens in _PROBES)
    arena.detach(slot)
    per_token = max(0.0, (many - few) / (_PROBES[1] - _PROBES[0]))
    if device.type == "cuda":
        fixed: float = torch.cuda.memory_allocated(device) - arena.rows * arena.bytes_per_row
        free, _ = torch.cuda.mem_get_info(device)
        memory = settings.worker_memory_bytes or free + torch.cuda.memory_reserved(device)
        per_row: float = arena.bytes_per_row
    else:
        fixed, per_token = _resident(), per_token * _TEMPORARIES
        whole = settings.worker_memory_bytes or _resident() + available_memory() // settings.worker_slots
        memory = whole - park_bytes(whole)
        per_row = arena.bytes_per_row + _HOST_COPIES * arena.layout.width
    model = MemoryModel(fixed, per_token, per_row)
    return Capacity(model, memory, settings.worker_step_tokens or _STEP_TOKENS[device.type])


def park_bytes(memory: int) -> int:
    """How much of a host's memory parked jobs may take before they go to disk."""
    return memory // _PARK_SHARE


def _examples(tokens: int, trainer: Trainer) -> list[Example]:
    """One synthetic sequence of which every token is a label; any token of the vocabulary costs the same."""
    length = tokens + 1
    mask = np.arange(length) > 0
    return [Example(np.arange(length, dtype=np.int32) % trainer.backbone.embedding.shape[0], mask)]


def _step_bytes(trainer: Trainer, segments: list[Segment]) -> int:
    """What one forward and backward holds at its peak, constants included."""
    device = trainer.backbone.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        trainer.train(segments)
        return torch.cuda.max_memory_allocated(device)
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.train(segments)
    return sum(held.values())


def _resident() -> int:
    """Bytes of this process in main memory."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
