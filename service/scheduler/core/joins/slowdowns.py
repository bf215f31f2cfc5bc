"""How tasks slow each other down on one executor, and when each of them ends there. Values only: knows no queue and no plan.

A step takes one pass of the base, whatever is in it, and then time for each token. Tasks that step together share the pass. An
executor hands out progress by deficit round robin: in the time in which a task of weight 1 makes the progress of a second
alone, one of weight w makes that of w seconds. With o the part of a task's step alone that is the pass (its overhead), that
time is max(w o) + sum(w (1 - o)) seconds, the round. A tenant's tasks on an executor divide its weight.

Near its bound a task is urgent: the executor multiplies its weight by (f / p)^2, at least 1 and at most 8. p is its progress,
compared with alone, and f a quarter more than its bound asks for. In a round of g seconds p = w u / g with urgency u, so u =
(f g / w)^(2/3): the round is a fixed point, and lasts as long as the urgencies say that follow from its length.

All GPUs of an executor step together. A task that is narrower than the executor has its jobs on as many of the GPUs as it is
wide; such tasks are spread, so a step lasts as long as on the GPU with the most of them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

ROUNDING = 1e-9
EARLY, MOST_URGENCY = 1.25, 8.0  # as worker/policy/deficit_round_robin.py has them, where what the executor does is decided
_ITERATIONS, _SETTLED = 40, 1e-6
_STEP = 1.5  # with a slope of 0 to 2/3 each iteration at least halves the error
MOST_CORRECTION = 8.0
MARGIN = 1.1  # by which a crowd's predicted slowdowns stay below its bounds: what is measured varies by as much
_HALVINGS = 24


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
    """A task on an executor: seconds that it would still take alone on its own `gpus` GPUs, at most the executor's, the weight
    of a second of its completion, and the seconds until its deadline, if it has one."""

    id: str
    tenant: str
    remaining: int
    sharing: Sharing
    weight: int = 1
    gpus: int = 1
    deadline: int | None = None


def slowdowns(members: Sequence[Member], gpus: int, correction: float = 1.0) -> dict[str, float]:
    """How many times longer each member takes than alone, while all of them are on the executor's `gpus` GPUs. `correction`:
    measured over predicted, at least 1."""
    there = tuple((member.tenant, member.sharing, member.gpus) for member in members)
    found = _slowdowns(there, gpus, correction if len(members) > 1 else 1.0)
    return {member.id: slow for member, slow in zip(members, found, strict=True)}


_There = tuple[tuple[str, Sharing, int], ...]  # of each member its tenant, what it brings, and the GPUs that it would run on


@lru_cache(maxsize=8192)  # a plan asks for the same ones in each of its trials
def _slowdowns(there: _There, gpus: int, correction: float) -> tuple[float, ...]:
    tasks = Counter(tenant for tenant, _, _ in there)
    parts = [sharing.weight / tasks[tenant] for tenant, sharing, _ in there]
    round_ = _round(there, gpus, parts)
    if any(EARLY * correction * round_ > part * sharing.bound for part, (_, sharing, _) in zip(parts, there, strict=True)):
        parts, round_ = _urgent(there, gpus, parts, correction)
    return tuple(max(1.0, round_ / part) * correction for part in parts)


def _round(there: _There, gpus: int, parts: Sequence[float]) -> float:
    """Seconds in which a member whose part of the weights is 1 makes the progress of a second alone."""
    passes = wide = narrow = 0.0
    layers = 0
    for (_, sharing, own), part in zip(there, parts, strict=True):
        passes, work = max(passes, part * sharing.overhead), part * (1 - sharing.overhead)
        if own < gpus:
            layers, narrow = layers + own, max(narrow, work)
        else:
            wide += work
    return passes + wide + math.ceil(layers / gpus) * narrow


def _urgent(there: _There, gpus: int, parts: Sequence[float], correction: float) -> tuple[list[float], float]:
    """The parts times each member's urgency, and the round that makes them so."""
    floors = [correction * min(1.0, EARLY / sharing.bound) for _, sharing, _ in there]
    round_ = _round(there, gpus, parts)
    for _ in range(_ITERATIONS):
        found = [
            part * min(MOST_URGENCY, max(1.0, (floor * round_ / part) ** (2 / 3)))
            for part, floor in zip(parts, floors, strict=True)
        ]
        after = _round(there, gpus, found)
        if abs(after - round_) <= _SETTLED * round_:
            break
        round_ *= (after / round_) ** _STEP
    return found, after


def correction_by(members: Sequence[Member], gpus: int, id: str, measured: float) -> float:
    """The correction, within 1 and MOST_CORRECTION, with which the member's predicted slowdown is the measured one. By
    bisection: it is no plain ratio, since members that are slower than predicted are more urgent, too."""
    low, high = 1.0, MOST_CORRECTION
    there = tuple((member.tenant, member.sharing, member.gpus) for member in members)
    place = next(at for at, member in enumerate(members) if member.id == id)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        less = _slowdowns.__wrapped__(there, gpus, middle)[place] < measured
        low, high = (middle, high) if less else (low, middle)
    return low


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


def broken_bounds(members: Sequence[Member], gpus: int, correction: float = 1.0, margin: float = MARGIN) -> list[str]:
    """The members whose slowdown is predicted to lie beyond their bound, or less than `margin` times below it."""
    slow = slowdowns(members, gpus, correction)
    return [member.id for member in members if margin * slow[member.id] > member.sharing.bound + ROUNDING]


def roomy(members: Sequence[Member]) -> bool:
    """Whether the memory of a GPU holds all of them beside their base."""
    return sum(member.sharing.room for member in members) <= 1.0 + ROUNDING
