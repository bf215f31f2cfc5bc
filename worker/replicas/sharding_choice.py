"""Whether the devices of a placement each hold a copy of the base, or shards of it: chosen by the base's shapes and the memory,
before anything is loaded. Loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contract.messages.placement_messages import BaseModelRef
from worker.model.arena import rows_for
from worker.model.base_weight_reader import adapter_columns, part_bytes, pass_bytes
from worker.model.families import UnsupportedModelError
from worker.model.sharding.weight_shards import Sharding
from worker.policy.base_sharding import BaseSizes, ShardPlan, everything, plan_sharding
from worker.replicas.memory_profile import adapter_row_bytes, memory_of
from worker.settings import Settings

# Tokens of the pass that each device must hold beside its part of the base: more layers than that takes are not sharded. A task
# of shorter steps needs no more than its own, but leaves the executor's next tasks room for the least pass: theirs are split.
_PASS_TOKENS = {"cpu": 1024, "cuda": 4096}
_LEAST_PASS_TOKENS = {"cpu": 256, "cuda": 1024}


@dataclass(frozen=True)
class Wanted:
    """What a placement wants beside the base. ranks: of its jobs' adapters. step_tokens: of each job's step, at most; none:
    not known. generates: texts, too."""

    ranks: tuple[int, ...] = ()
    step_tokens: tuple[int, ...] = ()
    generates: bool = False

    def rows(self, world: int) -> int:
        """Arena rows of the fullest of so many devices, to which the adapters are dealt from the widest on."""
        return sum(map(rows_for, sorted(self.ranks, reverse=True)[::world]))

    def pass_tokens(self, world: int, kind: str) -> int:
        """Of the longest pass that there is to be room for on each of so many devices of a kind."""
        fullest = sum(sorted(self.step_tokens, reverse=True)[::world])
        return max(_LEAST_PASS_TOKENS[kind], fullest) if self.step_tokens else _PASS_TOKENS[kind]


NOTHING_ELSE = Wanted()


@dataclass(frozen=True)
class ChosenSharding:
    """plan: what all ranks of an executor shard. held_bytes: of the base on each device. sentence: for a task's events."""

    plan: ShardPlan
    held_bytes: int
    sentence: str

    def of(self, rank: int) -> Sharding:
        return Sharding(rank, self.plan.world, frozenset(self.plan.layers), self.plan.ends)


def compute_dtype(device: torch.device) -> torch.dtype:
    """float32 on a CPU; on a GPU bfloat16 under float32 adapters."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def choose_sharding(
    ref: BaseModelRef, devices: Sequence[torch.device], settings: Settings, wanted: Wanted = NOTHING_ELSE
) -> ChosenSharding | None:
    """None: each device holds a copy. So too where the folder cannot be read, which loading then says. Texts are not written
    by a sharded base: where they are wanted, copies are held as long as they fit at all, as the planner counts. How many
    adapters there are says how much is sharded, not whether: the executor's next tasks have others."""
    world, mode, dtype = len(devices), settings.worker_sharding, compute_dtype(devices[0])
    tokens = min(settings.worker_step_tokens or _PASS_TOKENS[devices[0].type], wanted.pass_tokens(world, devices[0].type))
    if world < 2 or mode == "never" or not (Path(ref.source) / "config.json").is_file():
        return None
    try:
        sizes = BaseSizes(*part_bytes(Path(ref.source), dtype, ref.precision))
        room = pass_bytes(Path(ref.source), dtype, ref.precision, tokens)
        adapters = wanted.rows(world) * adapter_row_bytes(adapter_columns(Path(ref.source)), devices[0], settings)
    except (UnsupportedModelError, OSError, ValueError):
        return None
    memory = memory_of(devices[0], settings) // (world if devices[0].type == "cpu" else 1)
    if mode == "auto" and wanted.generates and sizes.whole <= memory:
        return None
    plan = everything(sizes, world) if mode == "always" else plan_sharding(sizes, world, memory, room, adapters)
    return ChosenSharding(plan, plan.bytes_per_rank(sizes), plan.sentence(sizes)) if plan is not None else None
