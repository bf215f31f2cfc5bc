"""Measures what an executor's memory model needs (ALTO A.3): M = k0 + k1 x tokens + k2 x rows.

The first phase is a profile: synthetic passes of several sizes, in rows as long as the task's longest, since attention costs a
token more in a longer row; on a CPU the tensors' own peak is counted, on a GPU the allocator's is read. It depends on the base
and the kind of device alone, so it is kept. The second reads what this executor holds and may use. Rows cost what the arena
takes and, where host memory is what is short, the host copies of an adapter.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from contract.wire import BaseModelRef
from worker.data.object_cache import ObjectCache
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Example, Segment
from worker.model.plain.trainer import Trainer
from worker.node.device_discovery import available_memory
from worker.policy.admission import Capacity, MemoryModel
from worker.settings import Settings

_PROBE_TOKENS = {"cpu": 256, "cuda": 4608}  # of the smallest pass, at least; shorter ones may be captured on a GPU
_SIZES = (1.0, 1.5, 2.0)  # of the passes, in smallest ones
_LEAST_ROW = 64  # tokens; rows are measured in powers of two from here on
_HOST_COPIES = 5 * 4  # bytes a column of one row: best weights, and the weights, moments and best of a checkpoint under way
_PARK_SHARE = {"cpu": 8, "cuda": 4}  # one part in so many of a CPU executor's memory, or of the main memory that is free
_STEP_TOKENS = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True)
class Profile:
    """Bytes of a training pass beyond what was there before: constant + per_token x tokens, missed by `residual` at most."""

    constant: float
    per_token: float
    residual: float

    @classmethod
    def fitted(cls, tokens: list[int], seen: list[int]) -> "Profile":
        """The least-squares line through the passes' peaks; neither part is negative."""
        slope, start = np.polyfit(tokens, seen, 1)
        per_token, constant = max(0.0, float(slope)), max(0.0, float(start))
        residual = max(abs(peak - constant - per_token * size) for size, peak in zip(tokens, seen, strict=True))
        return cls(constant, per_token, residual)


def profile_of(trainer: Trainer, base: BaseModelRef, row_tokens: int, scratch: ObjectCache) -> Profile:
    """Of passes in rows of up to `row_tokens` tokens, read from the scratch folder if it was measured here before."""
    positions = trainer.backbone.max_positions
    longest = min(max(row_tokens, _LEAST_ROW, 1 << (row_tokens - 1).bit_length()), max(row_tokens, positions))
    device = trainer.backbone.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    recompute = isinstance(trainer, DeviceTrainer) and trainer.recompute
    said = f"profile {base.revision} {base.precision} {name} {recompute} {torch.__version__} {longest}"
    key = hashlib.sha256(said.encode()).hexdigest()
    kept = scratch.find(key)
    if kept is not None:
        return Profile(**json.loads(kept.read_text()))
    made = measured(trainer, longest)
    scratch.keep(partial(_write, made), name=key)
    return made


def measured(trainer: Trainer, row_tokens: int) -> Profile:
    """Of passes in rows of `row_tokens` tokens."""
    least = max(_PROBE_TOKENS[trainer.backbone.device.type], row_tokens)
    sizes = [round(least * size) for size in _SIZES]
    return Profile.fitted(sizes, [_pass_bytes(trainer, size, row_tokens) for size in sizes])


def capacity_of(profile: Profile, trainer: Trainer, settings: Settings, replicas: int = 1) -> Capacity:
    """What a replica with this trainer has, one of so many, and what it takes of it as it is now. `park_bytes` are those of
    all of them."""
    device, arena = trainer.backbone.device, trainer.arena
    constant = profile.constant + profile.residual
    if isinstance(trainer, DeviceTrainer):
        constant += profile.per_token * trainer.graph_tokens  # captured passes have a pool of their own
    if device.type == "cuda":
        fixed = torch.cuda.memory_allocated(device) - arena.rows * arena.bytes_per_row
        free, _ = torch.cuda.mem_get_info(device)
        memory = settings.worker_memory_bytes or free + torch.cuda.memory_reserved(device)
        per_row = arena.bytes_per_row
        parked = settings.worker_park_bytes or available_memory() // _PARK_SHARE["cuda"]
    else:
        fixed = _resident()
        whole = settings.worker_memory_bytes or fixed + replicas * (available_memory() // settings.worker_slots)
        parked = settings.worker_park_bytes or whole // _PARK_SHARE["cpu"]
        memory = fixed + (whole - parked - fixed) // replicas
        per_row = arena.bytes_per_row + _HOST_COPIES * arena.layout.width
    model = MemoryModel(fixed + constant, profile.per_token, per_row)
    tokens = settings.worker_step_tokens or _STEP_TOKENS[device.type]
    return Capacity(model, memory, tokens, park_bytes=parked)


def _write(profile: Profile, path: Path) -> None:
    path.write_text(json.dumps(asdict(profile)))


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
