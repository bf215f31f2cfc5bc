"""Measures an executor's memory model (ALTO A.3): M = k0 + k1 x tokens + k2 x rows, for passes that keep their activations and
for passes that recompute them.

The first phase profiles synthetic passes of several sizes, before any job trains on the base, and caches the result by base,
kind of device and row length. On a CPU it counts the tensors' own peak, in rows as long as the task's longest, since attention
costs more per token in a longer row. On a GPU it reads the allocator's peak, in one row as long as the pass: there a longer row
costs no more per token, so longer rows follow the line, and a task with long rows is profiled without a pass over them. A pass
that finds no memory halves all sizes.

The second phase reads what this executor holds and may use. A row costs what the arena takes and, where host memory is short,
the host copies of an adapter.
"""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from grouped_lora.optimizer.blockwise_8bit import BLOCK
from grouped_lora.work_table import tile_width

from contract.messages.placement_messages import BaseModelRef
from worker.data.disk_full import DiskFull
from worker.data.object_cache import ObjectCache
from worker.main_memory import available_memory
from worker.model.arena import ROW_MULTIPLE
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.plain.trainer import OutOfMemory, Trainer, probe
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import AVERAGED
from worker.settings import Settings

log = logging.getLogger(__name__)

_FORM = 2  # of what a pass keeps: profiles of another are measured anew
_PROBE_TOKENS = {"cpu": 256, "cuda": 4608}  # least size of the smallest pass; shorter ones may be captured on a GPU
_LEAST_PROBE = 32  # tokens; no smaller pass is tried
_SIZES = (1.0, 1.5, 2.0)  # of the passes, as multiples of the smallest
_LEAST_ROW = 64  # tokens; rows are measured in powers of two from here on
_MOST_ROW = 1024  # tokens; a line through single rows from this length on bounds what longer rows take
# bytes a column of one row: the best weights, and the weights, moments and best weights, which others may have replaced since,
# of a checkpoint under way
_HOST_COPIES = (AVERAGED + 3 + AVERAGED) * 4
_PARK_SHARE = {"cpu": 8, "cuda": 4}  # one part in so many of a CPU executor's memory, or of the main memory that is free
_MOST_LONGER = 4  # times as long a micro-batch may become where that is measured to pay
_STEP_TOKENS = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True)
class Profile:
    """Extra bytes of a training pass: constant + per_token x tokens, with an error of at most `residual`."""

    constant: float
    per_token: float
    residual: float

    @classmethod
    def fitted(cls, tokens: list[int], seen: list[int]) -> "Profile":
        """The least-squares line through the passes' peaks; neither coefficient is negative."""
        slope, start = np.polyfit(tokens, seen, 1)
        per_token, constant = max(0.0, float(slope)), max(0.0, float(start))
        residual = max(abs(peak - constant - per_token * size) for size, peak in zip(tokens, seen, strict=True))
        return cls(constant, per_token, residual)


@dataclass(frozen=True)
class Profiles:
    """Profiles of passes that keep their activations, and of passes that recompute them."""

    kept: Profile
    recomputed: Profile


def profiles_of(trainer: Trainer, base: BaseModelRef, row_tokens: int, scratch: ObjectCache) -> Profiles:
    """The profiles for rows of up to `row_tokens` tokens, read from the cache folder if they were measured here before.

    Measures with a sibling of the trainer, which the loop may use meanwhile. On a GPU, where peaks are the device's, a base has
    one profile, so it is measured before anything trains. Raises OutOfMemory where no pass at all finds memory.
    """
    key, longest = _key(trainer, base, row_tokens), _row_class(trainer, row_tokens)
    known = trainer.profiles.get(key)
    if known is None:
        trainer.profiles[key] = known = _read(scratch.find(key)) or _measured(trainer.sibling(), longest)
    return known


def keep_profiles(trainer: Trainer, base: BaseModelRef, row_tokens: int, scratch: ObjectCache) -> None:
    """Write to the cache folder what profiles_of measured, once the weights are known to be the base's."""
    key = _key(trainer, base, row_tokens)
    if scratch.find(key) is not None:
        return
    try:
        scratch.keep(partial(_write, trainer.profiles[key]), name=key)
    except DiskFull as error:
        log.warning("the memory profile is measured again next time: %s", error)


def _key(trainer: Trainer, base: BaseModelRef, row_tokens: int) -> str:
    device = trainer.backbone.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    said = f"profiles {_FORM} {base.revision} {base.precision} {name} {torch.__version__} {_row_class(trainer, row_tokens)}"
    return hashlib.sha256(said.encode()).hexdigest()


def _measured(trainer: Trainer, longest: int) -> Profiles:
    made = Profiles(measured(trainer, longest), measured(trainer, longest, recompute=True))
    trainer.release_caches()  # release cached blocks of the passes' sizes
    return made


def _read(path: Path | None) -> Profiles | None:
    if path is None:
        return None
    return Profiles(**{form: Profile(**numbers) for form, numbers in json.loads(path.read_text()).items()})


def measured(trainer: Trainer, row_tokens: int, recompute: bool = False) -> Profile:
    """The profile of passes in rows of `row_tokens` tokens; beyond _MOST_ROW, in single rows of growing length.

    Halves the sizes where they find no memory. Raises OutOfMemory where even the smallest finds none.
    """
    least = max(_PROBE_TOKENS[trainer.backbone.device.type], min(row_tokens, _MOST_ROW))
    while True:
        sizes = [round(least * size) for size in _SIZES]
        try:
            seen = [_pass_bytes(trainer, size, size if row_tokens > _MOST_ROW else row_tokens, recompute) for size in sizes]
            return Profile.fitted(sizes, seen)
        except OutOfMemory as error:
            least //= 2
            if least < _LEAST_PROBE:
                raise
            log.warning("no memory to measure a pass of %d tokens; all are halved, from %d on", error.tokens, least)


def capacity_of(profiles: Profiles, trainer: Trainer, settings: Settings, replicas: int = 1, rank: int = 0) -> Capacity:
    """The capacity of one of `replicas` replicas, from what its trainer holds and may use now, for adapters of up to `rank`.
    All replicas share `park_bytes`; each has its part of as much again for weights at lowest losses."""
    device, arena = trainer.backbone.device, trainer.arena
    per_row = arena.bytes_per_row
    parked = park_bytes(device, settings, replicas)
    if device.type == "cuda":
        fixed = held_bytes(trainer)
        memory = settings.worker_memory_bytes or _free_bytes(device)
    else:
        fixed = _resident()
        memory = (_main_memory(settings, replicas) - parked) // replicas
        per_row += _HOST_COPIES * arena.layout.width
    graph_tokens = trainer.graph_tokens if isinstance(trainer, DeviceTrainer) else 0

    def model(profile: Profile, recompute: bool) -> MemoryModel:
        constant = fixed + profile.constant + profile.residual
        per_token = profile.per_token + shrunk_bytes(trainer, rank, recompute)
        return MemoryModel(constant, per_token, per_row, captured=per_token * graph_tokens)

    tokens = settings.worker_step_tokens or _STEP_TOKENS[device.type]
    most = 0 if settings.worker_step_tokens else _MOST_LONGER * tokens
    has = Capacity(model(profiles.kept, False), memory, tokens, park_bytes=parked, most_pass_tokens=most)
    if device.type == "cuda":
        has = replace(has, lowest_bytes=parked / replicas)
    return replace(has, recomputed=model(profiles.recomputed, True))


def park_bytes(device: torch.device, settings: Settings, replicas: int = 1) -> int:
    """Main memory that parked adapters of so many replicas may take."""
    if settings.worker_park_bytes is not None:
        return settings.worker_park_bytes
    whole = available_memory() if device.type == "cuda" else _main_memory(settings, replicas)
    return whole // _PARK_SHARE[device.type]


def _main_memory(settings: Settings, replicas: int) -> int:
    """Of a CPU executor."""
    return settings.worker_memory_bytes or replicas * (_resident() + available_memory() // settings.worker_slots)


def adapter_row_bytes(columns: int, device: torch.device, settings: Settings) -> int:
    """What `capacity_of` counts for a row of so many columns, before there is an arena: weights, gradient and moments, and on a
    GPU the copy that products read."""
    moments = 2 * (1 + 4 / BLOCK) if settings.worker_moments == "8bit" else 8
    return round(columns * (8 + moments + (2 if device.type == "cuda" else _HOST_COPIES)))


def shrunk_bytes(trainer: Trainer, rank: int, recompute: bool) -> int:
    """Bytes per token of S = X A^T and dS in a pass whose widest adapter has `rank`, beyond those of the profile's own passes.

    S of every matrix is kept for backward, or with `recompute` that of one layer. On a GPU dS of two layers is alive beside it,
    all tokens of a pass take the class of the widest rank, and the profile's passes had a small adapter.
    """
    layers, targets = len(trainer.arena.layout.layers), len(trainer.arena.layout.targets)
    held = 1 if recompute else layers
    if trainer.backbone.device.type == "cuda":
        width, size, held = tile_width(rank) - tile_width(ROW_MULTIPLE), 2, held + 2
    else:
        width, size = rank, 4
    return max(0, width) * held * (targets // layers) * size


def held_bytes(trainer: Trainer) -> int:
    """Bytes of the frozen base as stored."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in trainer.backbone.tensors()}
    return sum(storages.values())


def limit_memory(device: torch.device, settings: Settings) -> None:
    """Have this process find no more memory on a GPU than an operator gave it: a pass that takes more fails as on a smaller
    GPU. What CUDA and its libraries allocate themselves is not counted."""
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (settings.worker_memory_bytes or whole) / whole), device)


def memory_of(device: torch.device, settings: Settings) -> int:
    """Bytes that one copy of a base may take at most."""
    if settings.worker_memory_bytes is not None:
        return settings.worker_memory_bytes
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return _resident() + available_memory()


def _free_bytes(device: torch.device) -> int:
    """Bytes of GPU memory that are free, or already reserved by this process."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def _row_class(trainer: Trainer, row_tokens: int) -> int:
    """The row length to measure at: one for all on a GPU; on a CPU powers of two, and one for all beyond _MOST_ROW."""
    positions = trainer.backbone.max_positions
    if trainer.backbone.device.type == "cuda" or row_tokens > _MOST_ROW:
        return _MOST_ROW + 1
    return min(max(row_tokens, _LEAST_ROW, 1 << (row_tokens - 1).bit_length()), max(row_tokens, positions))


def _write(profiles: Profiles, path: Path) -> None:
    path.write_text(json.dumps(asdict(profiles)))


def _pass_bytes(trainer: Trainer, tokens: int, row_tokens: int, recompute: bool) -> int:
    """Peak bytes of one training pass beyond what was allocated before; on a GPU with a small adapter, since the inputs of
    adapter products live longer than the base's own."""
    device = trainer.backbone.device
    row_tokens = min(row_tokens, trainer.backbone.max_positions)
    if device.type != "cuda":
        return trainer.activation_bytes(tokens, row_tokens, recompute)
    slot = trainer.arena.attach(ROW_MULTIPLE, ROW_MULTIPLE) if trainer.arena.fits(ROW_MULTIPLE) else None
    try:
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        trainer.train(probe(tokens, row_tokens, slot), recompute)
        return torch.cuda.max_memory_allocated(device) - before
    finally:
        if slot is not None:
            trainer.arena.detach(slot)


def _resident() -> int:
    """Bytes of this process in main memory, without mapped files (token streams), whose pages the kernel drops when memory is
    short."""
    with open("/proc/self/status") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
