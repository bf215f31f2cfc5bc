"""Measures what an executor's memory model needs (ALTO A.3): M = k0 + k1 x tokens + k2 x rows.

Two synthetic passes of rows as long as the task's longest give k1, since attention costs a token more in a longer row: on a
CPU the tensors' own peak is counted, on a GPU the allocator's is read. Rows cost what the arena takes and, where host memory
is what is short, the host copies of an adapter.
"""

import numpy as np
import torch

from worker.devices import available_memory
from worker.model.batch import Example, Segment
from worker.model.trainer import Trainer
from worker.policy.admission import Capacity, MemoryModel
from worker.settings import Settings

_PROBE_TOKENS = {"cpu": 256, "cuda": 4608}  # of the smaller pass, at least; a GPU's smaller passes are captured and kept
_HOST_COPIES = 5 * 4  # bytes a column of one row: best weights, and the weights, moments and best of a checkpoint under way
_PARK_SHARE = 8  # a CPU executor keeps this part of its memory for parked jobs
_STEP_TOKENS = {"cpu": 4096, "cuda": 16384}


def measure(trainer: Trainer, settings: Settings, row_tokens: int) -> Capacity:
    """The capacity of an executor for rows of up to `row_tokens` tokens."""
    device = trainer.backbone.device
    tokens = max(_PROBE_TOKENS[device.type], row_tokens)
    few, many = (_pass_bytes(trainer, size, row_tokens) for size in (tokens, 2 * tokens))
    per_token = max(0.0, (many - few) / tokens)
    constant = max(0.0, few - per_token * tokens)
    arena = trainer.arena
    if device.type == "cuda":
        fixed = torch.cuda.memory_allocated(device) - arena.rows * arena.bytes_per_row
        free, _ = torch.cuda.mem_get_info(device)
        memory = settings.worker_memory_bytes or free + torch.cuda.memory_reserved(device)
        per_row = arena.bytes_per_row
    else:
        fixed = _resident()
        whole = settings.worker_memory_bytes or fixed + available_memory() // settings.worker_slots
        memory = whole - park_bytes(whole)
        per_row = arena.bytes_per_row + _HOST_COPIES * arena.layout.width
    model = MemoryModel(fixed + constant, per_token, per_row)
    return Capacity(model, memory, settings.worker_step_tokens or _STEP_TOKENS[device.type])


def park_bytes(memory: int) -> int:
    """How much of a host's memory parked jobs may take before they go to disk."""
    return memory // _PARK_SHARE


def _pass_bytes(trainer: Trainer, tokens: int, row_tokens: int) -> int:
    """What one training pass holds at its peak, beyond what was there before."""
    device = trainer.backbone.device
    if device.type != "cuda":
        return trainer.activation_bytes(tokens, row_tokens)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    lengths = [row_tokens] * (tokens // row_tokens) + [tokens % row_tokens]
    rows = [Example(np.zeros(n + 1, np.int32), np.arange(n + 1) > 0) for n in lengths if n]
    trainer.train([Segment(None, rows)])
    return torch.cuda.max_memory_allocated(device) - before


def _resident() -> int:
    """Bytes of this process in main memory."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
