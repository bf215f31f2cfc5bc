"""Which tasks take part in the next step: deficit round robin (Shreedhar & Varghese 1995) over tasks that share an executor.

Pure: costs and deficit counters in, a choice and new counters out. A task's deficit counter (a credit, below 0 a debt) grows
with its rate and falls by the cost of each slice that it runs, so what a task gets over time is its rate's share, whatever the
sizes of its steps. A slice is a task's whole step, or as many of its pieces as one pass holds; all jobs of a task are in it
together.

Costs are seconds that the slices would take alone, so equal rates mean equal progress compared with running alone. A task runs
beside the one whose turn it is, on credit: steps that are packed together cost less than one after another. The credit is a
slice (with half of one, 16 tasks whose steps differ by a tenth were packed 54 % as often as they could be; with a whole one
97 %), and what the caller gives besides, by rates: a tenant's tasks share it, and beside an urgent task others get less.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_URGENCY = 8.0
_MEMORY_SECONDS = 30.0  # after so many, what was measured counts half


@dataclass(frozen=True)
class SliceCost:
    """What a slice takes: seconds alone, as predicted, and tokens."""

    seconds: float
    tokens: int


@dataclass(frozen=True)
class RunnableTask:
    """A task with work. weight: its tenant's, which the tenant's tasks share. cost: of its next slice, in seconds alone (or any
    unit that is the same for all). tokens: of that slice. urgency: at least 1; see `urgency`."""

    key: str
    tenant: str
    cost: float
    tokens: int
    weight: float = 1.0
    urgency: float = 1.0


@dataclass(frozen=True)
class SliceSelection:
    """chosen: in the order of the candidates. deficits: after it, of every candidate."""

    chosen: tuple[str, ...]
    deficits: Mapping[str, float]


def rates(candidates: Sequence[RunnableTask]) -> dict[str, float]:
    """What each task's counter gains at a time: its part of its tenant's weight, times its urgency."""
    tasks = Counter(one.tenant for one in candidates)
    return {one.key: one.weight / tasks[one.tenant] * one.urgency for one in candidates}


def allowances(candidates: Sequence[RunnableTask], credit: float) -> dict[str, float]:
    """What each task may owe besides a slice: its part of `credit`, by rates; that of the highest rate may owe all of it."""
    gain = rates(candidates)
    most = max(gain.values(), default=1.0)
    return {key: credit * own / most for key, own in gain.items()}


def select(
    candidates: Sequence[RunnableTask], deficits: Mapping[str, float], budget: int, credit: float = 0.0
) -> SliceSelection:
    """The tasks whose next slices run now, of at most `budget` tokens together (a single larger slice excepted).

    deficits: as the last selection left them; a task that is not in it has none. All counters gain, in proportion to their
    rates, until the first task can pay for its slice; it runs, and so do those that owe at most their `allowances`. Who is left
    out for want of tokens comes first the next time. So a counter stays within a slice of the task and its credit of 0, but for
    what is `charged`.
    """
    if not candidates:
        return SliceSelection((), {})
    waits, after = _gained(candidates, deficits)
    order = sorted(range(len(candidates)), key=lambda at: (waits[candidates[at].key], at))
    allowed = allowances(candidates, credit)
    chosen, tokens = set[str](), 0
    for at in order:
        one = candidates[at]
        first = not chosen
        turn = first or after[one.key] >= -allowed[one.key]
        if turn and (first or tokens + one.tokens <= budget):
            chosen.add(one.key)
            tokens += one.tokens
            after[one.key] -= one.cost
    return SliceSelection(tuple(one.key for one in candidates if one.key in chosen), after)


def charged(candidates: Sequence[RunnableTask], deficits: Mapping[str, float]) -> dict[str, float]:
    """The deficits after all of these ran, as in a selection of all of them: who cost more than others owes it."""
    _, after = _gained(candidates, deficits)
    return {one.key: after[one.key] - one.cost for one in candidates}


def _gained(candidates: Sequence[RunnableTask], deficits: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """How long each task would wait until it can pay, and all counters once the first of them can."""
    gain = rates(candidates)
    before = {one.key: deficits.get(one.key, 0.0) for one in candidates}
    waits = {one.key: max(0.0, (one.cost - before[one.key]) / gain[one.key]) for one in candidates}
    clock = min(waits.values(), default=0.0)
    return waits, {key: balance + clock * gain[key] for key, balance in before.items()}


@dataclass(frozen=True)
class SpeedEstimate:
    """A task's speed compared with running alone, of late: seconds that its slices take alone, of the seconds that passed."""

    alone: float = 0.0
    seconds: float = 0.0

    def after(self, seconds: float, alone: float) -> "SpeedEstimate":
        """A step of all took `seconds`, in which this task did what takes `alone`."""
        kept = 0.5 ** (seconds / _MEMORY_SECONDS)
        return SpeedEstimate(kept * self.alone + alone, kept * self.seconds + seconds)

    @property
    def speed(self) -> float:
        """At most 1; 1 before anything was measured."""
        return min(1.0, self.alone / self.seconds) if self.seconds > 0 else 1.0


def urgency(progress: float, most_slowdown: float | None) -> float:
    """How much faster than its weight alone a task's counter grows: 1 while it is well above its bound, and up to
    _MOST_URGENCY as it falls below.

    progress: its speed compared with running alone, at most 1. most_slowdown: its bound, as a multiple of the time alone.
    """
    if most_slowdown is None:
        return 1.0
    floor = min(1.0, 1.25 / most_slowdown)  # a quarter above the bound, so that it is met before it is missed
    if progress >= floor:
        return 1.0
    return _MOST_URGENCY if progress**2 * _MOST_URGENCY <= floor**2 else (floor / progress) ** 2
