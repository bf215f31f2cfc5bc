"""Fair share in a simulated run: the product's own shares, completion_weights and preemption, fed with the fake fleet's state.

It decides what a plan should weigh and who gives GPUs back. Starts nothing. Knows no clock but the times it is given.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.simulator.arrivals import Arrival
from service.scheduler.core.fair_share import (
    Ask,
    Share,
    comparable_weights,
    completion_weights,
    decayed,
    entered,
    entitled,
    owed,
)
from service.scheduler.core.preemption.owed_gpus import Held, Preemption, Preemptor, next_bound, preemption
from service.scheduler.core.problem import PlanNode

ENTRY_SECONDS = 300.0  # charged at once for a start
_KIND = "gpu"


@dataclass(frozen=True)
class Waiting:
    """A queued task: its expected duration, its total wait so far, and the nodes that it fits."""

    task: Arrival
    seconds: float
    waited: float
    nodes: frozenset[str]


@dataclass
class Record:
    """Tenants' results: GPU seconds held while every tenant had tasks waiting, and the longest wait of a task that was within
    its tenant's share all along."""

    together: dict[str, float] = field(default_factory=dict)
    together_seconds: float = 0.0
    covered_wait: float = 0.0


class Tenancy:
    """All tenants' use, and since when each task has been within its tenant's share."""

    def __init__(self, tenants: Sequence[str], gpus: int, half_life: float) -> None:
        self._tenants, self._gpus, self._half_life = tenants, gpus, half_life
        self._use = dict.fromkeys(tenants, 0.0)
        self._since: dict[str, float] = {}
        self.record = Record(dict.fromkeys(tenants, 0.0))

    def pass_time(self, seconds: float, held: Mapping[str, int], waiting: set[str]) -> None:
        """Advance by `seconds`, with these GPUs held and these tenants having tasks waiting."""
        if len(waiting) == len(self._tenants):
            self.record.together_seconds += seconds
            for tenant in self._tenants:
                self.record.together[tenant] += seconds * held.get(tenant, 0)
        for tenant in self._tenants:
            self._use[tenant] = decayed(self._use[tenant], held.get(tenant, 0), seconds, self._half_life)

    def enter(self, tenant: str, gpus: int) -> None:
        self._use[tenant] = entered(self._use[tenant], gpus, ENTRY_SECONDS, self._half_life)

    def completion_weights(self, waiting: Sequence[Waiting], placed: Sequence[Held]) -> dict[str, int]:
        asks = [Ask(w.task.id, w.task.tenant, w.task.gpus, w.seconds, w.task.priority, w.waited) for w in waiting]
        return completion_weights(asks, self._shares(waiting, placed), {_KIND: self._gpus})

    def comparable_weights(
        self, waiting: Sequence[Waiting], running: Sequence[Waiting], placed: Sequence[Held]
    ) -> dict[str, int]:
        both = (*waiting, *running)
        asks = [Ask(w.task.id, w.task.tenant, w.task.gpus, w.seconds, w.task.priority, w.waited) for w in both]
        return comparable_weights(asks, self._shares(waiting, placed), {_KIND: self._gpus})

    def dues(self, waiting: Sequence[Waiting], placed: Sequence[Held]) -> tuple[tuple[str, float], ...]:
        """As `SchedulingProblem.dues`."""
        shares = self._shares(waiting, placed)
        return tuple(owed(shares, self._gpus).items()) if sum(share.active for share in shares) > 1 else ()

    def preempt(
        self, waiting: Sequence[Waiting], placed: Sequence[Held], nodes: Sequence[PlanNode], bound: float
    ) -> Preemption | None:
        due, _ = self._due(waiting, placed)
        return preemption(_preemptors(waiting), placed, nodes, due, bound)

    def next_bound(self, waiting: Sequence[Waiting], placed: Sequence[Held], bound: float) -> float | None:
        due, _ = self._due(waiting, placed)
        return next_bound(_preemptors(waiting), placed, due, bound)

    def watch(self, now: float, waiting: Sequence[Waiting], placed: Sequence[Held]) -> None:
        """Record how long tasks within their tenant's share have waited. Call it before and after each change."""
        due, holds = self._due(waiting, placed)
        covered = {
            w.task.id for w in waiting if entitled(w.task.gpus, holds.get(w.task.tenant, 0), due.get(w.task.tenant, 0.0))
        }
        self._since = {task: self._since.get(task, now) for task in covered}
        longest = max((now - since for since in self._since.values()), default=0.0)
        self.record.covered_wait = max(self.record.covered_wait, longest)

    def _due(self, waiting: Sequence[Waiting], placed: Sequence[Held]) -> tuple[dict[str, float], dict[str, int]]:
        return owed(self._shares(waiting, placed), self._gpus), _held(placed)

    def _shares(self, waiting: Sequence[Waiting], placed: Sequence[Held]) -> list[Share]:
        held, demand = _held(placed), Counter[str]()
        for each in placed:
            demand[each.tenant] += each.gpus - each.spare
        for asks in waiting:
            demand[asks.task.tenant] += asks.task.gpus
        return [Share(t, 1.0, {_KIND: held[t]}, {_KIND: self._use[t]}, demand[t] > 0, demand[t]) for t in self._tenants]


def _held(placed: Sequence[Held]) -> Counter[str]:
    """GPUs by tenant."""
    held = Counter[str]()
    for each in placed:
        held[each.tenant] += each.gpus
    return held


def _preemptors(waiting: Sequence[Waiting]) -> list[Preemptor]:
    return [Preemptor(w.task.id, w.task.tenant, w.task.gpus, w.waited, w.nodes) for w in waiting]
