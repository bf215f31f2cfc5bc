"""What a placement wants of a base, and whether its devices each hold a copy of it, or shards: chosen by the base's shapes and
the memory, before anything is loaded. Loads nothing."""

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

# Tokens of the pass that each device must hold beside its part of the base: more layers than that takes are not sharded.
_PASS_TOKENS = {"cpu": 1024, "cuda": 4096}


@dataclass(frozen=True)
class Wanted:
    """What a placement wants beside the base. ranks: of its jobs' adapters, at most. step_tokens: of each job's step, at most;
    none: not known. generates: texts, too. possible_ranks: those that its jobs have or may have. dropouts: whether jobs have
    dropout."""

    ranks: tuple[int, ...] = ()
    step_tokens: tuple[int, ...] = ()
    generates: bool = False
    possible_ranks: frozenset[int] = frozenset()
    dropouts: frozenset[bool] = frozenset()

    def rows(self, world: int) -> int:
        """Arena rows of the fullest of so many devices, to which the adapters are dealt from the widest on."""
        return sum(map(rows_for, sorted(self.ranks, reverse=True)[::world]))

    def pass_tokens(self, world: int, longest: int) -> int:
        """Of the longest pass of the fullest of so many devices, where none is longer than `longest`."""
        return min(longest, sum(sorted(self.step_tokens, reverse=True)[::world])) if self.step_tokens else longest


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
    by a sharded base: where they are wanted, copies are held as long as they fit at all. How many adapters there are, and how
    long their steps, says how much is sharded, not whether: the executor's next tasks have others, of which one fits beside
    the longest pass."""
    world, mode, dtype, source = len(devices), settings.worker_sharding, compute_dtype(devices[0]), Path(ref.source)
    if world < 2 or mode == "never" or not (source / "config.json").is_file():
        return None
    longest = settings.worker_step_tokens or _PASS_TOKENS[devices[0].type]
    try:
        sizes = BaseSizes(*part_bytes(source, dtype, ref.precision))
        own, room = (
            pass_bytes(source, dtype, ref.precision, tokens) for tokens in (wanted.pass_tokens(world, longest), longest)
        )
        row = adapter_row_bytes(adapter_columns(source), devices[0], settings)
    except (UnsupportedModelError, OSError, ValueError):
        return None
    memory = memory_of(devices[0], settings) // (world if devices[0].type == "cpu" else 1)
    if mode == "auto" and wanted.generates and sizes.whole <= memory:
        return None
    beside = room_beside(own, room, row * wanted.rows(world), row * wanted.rows(len(wanted.ranks) or 1))
    plan = everything(sizes, world) if mode == "always" else plan_sharding(sizes, world, memory, room, beside - room)
    return ChosenSharding(plan, plan.bytes_per_rank(sizes), plan.sentence(sizes)) if plan is not None else None


def room_beside(own_pass: int, longest_pass: int, adapters: int, widest: int) -> int:
    """Bytes that a device needs beside its part of the base: of the task that loads it its longest pass and the adapters, and
    of a next task the longest pass of all beside one adapter, the widest of these."""
    return max(own_pass + adapters, longest_pass + widest)
