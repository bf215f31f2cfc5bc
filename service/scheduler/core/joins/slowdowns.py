"""How tasks slow each other down on one executor, and when each of them ends there. Values only: knows no queue and no plan.

A step takes one pass of the base, whatever is in it, and then time for each token. Tasks that step together share the pass. An
executor hands out progress by deficit round robin: in the time in which a task of weight 1 makes the progress of a second
alone, one of weight w makes that of w seconds. With o the part of a task's step alone that is the pass (its overhead), that
time is max(w o) + sum(w (1 - o)) seconds. A tenant's tasks on an executor divide its weight.

All GPUs of an executor step together. A task that is narrower than the executor has its jobs on as many of the GPUs as it is
wide; such tasks are spread, so a step lasts as long as on the GPU with the most of them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-9


@dataclass(frozen=True)
class Sharing:
    """What a task brings to an executor that it shares, on GPUs of one type.

    group: tasks share an executor only within one (base, revision, precision). overhead: the part of its step alone that a pass
    takes whatever is in it, in [0, 1). room: the part of a GPU's memory that it needs beside the base and a pass. bound: its
    largest slowdown against running alone, at least 1. weight: of its tenant, whose tasks on an executor divide it.
    """

    group: str
    overhead: float
    room: float
    bound: float
    weight: float = 1.0


@dataclass(frozen=True)
class Member:
    """A task on an executor: seconds that it would still take alone on its own `gpus` GPUs, at most the executor's, and the
    weight of a second of its completion."""

    id: str
    tenant: str
    remaining: int
    sharing: Sharing
    weight: int = 1
    gpus: int = 1


def slowdowns(members: Sequence[Member], gpus: int, correction: float = 1.0) -> dict[str, float]:
    """How many times longer each member takes than alone, while all of them are on the executor's `gpus` GPUs. `correction`:
    measured over predicted, at least 1."""
    tasks = Counter(member.tenant for member in members)
    part = {member.id: member.sharing.weight / tasks[member.tenant] for member in members}
    passes = max((part[member.id] * member.sharing.overhead for member in members), default=0.0)
    work = {member.id: part[member.id] * (1 - member.sharing.overhead) for member in members}
    narrow = [member for member in members if member.gpus < gpus]
    layers = math.ceil(sum(member.gpus for member in narrow) / gpus)
    round_ = passes + sum(work[member.id] for member in members if member.gpus >= gpus)
    round_ += layers * max((work[member.id] for member in narrow), default=0.0)
    worse = correction if len(members) > 1 else 1.0
    return {member.id: max(1.0, round_ / part[member.id]) * worse for member in members}


def ends(members: Sequence[Member], gpus: int, correction: float = 1.0) -> dict[str, int]:
    """Seconds until each member's end, if nobody else comes: those who stay become faster as others end."""
    left = {member.id: float(member.remaining) for member in members}
    there, now, found = list(members), 0.0, dict[str, int]()
    while there:
        slow = slowdowns(there, gpus, correction)
        span = min(left[member.id] * slow[member.id] for member in there)
        now += span
        for member in there:
            left[member.id] -= span / slow[member.id]
        gone = [member for member in there if left[member.id] <= ROUNDING * max(1, member.remaining)]
        for member in gone:
            found[member.id] = max(1, round(now))
        there = [member for member in there if member.id not in found]
    return found


def broken_bounds(members: Sequence[Member], gpus: int, correction: float = 1.0) -> list[str]:
    """The members whose predicted slowdown lies beyond their bound."""
    slow = slowdowns(members, gpus, correction)
    return [member.id for member in members if slow[member.id] > member.sharing.bound + ROUNDING]


def roomy(members: Sequence[Member]) -> bool:
    """Whether the memory of a GPU holds all of them beside their base."""
    return sum(member.sharing.room for member in members) <= 1.0 + ROUNDING
