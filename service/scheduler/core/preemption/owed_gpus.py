"""Decides whether a tenant that is owed GPUs gets them now, and from which running tasks. Values only; changes nothing.

A tenant may borrow idle GPUs. When another tenant's task, covered by that tenant's due, has waited longer than the bound, the
biggest borrower gives back its lowest-priority, youngest placement, but never so much that it falls as far under its own due as
the preemptor was. So the largest shortfall only shrinks, and tenants do not preempt each other in turns. A task that runs wider
than its narrowest width restarts narrower beside the preemptor. Where free GPUs are scattered, any tenant's placement that fits
among them elsewhere may be moved. GPUs count by their node's `worth`. A priority is compared only within its tenant: relative
to the highest that the tenant has running.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from service.scheduler.core.fair_share import NEGLIGIBLE, entitled
from service.scheduler.core.problem import PlanNode


@dataclass(frozen=True)
class Held:
    """A running task. `age` is seconds since it was placed; `nodes` are those it could move to; `spare` of its GPUs are beyond
    its narrowest width. `needs` are the GPUs of that on nodes where they differ from here."""

    task: str
    tenant: str
    node: str
    gpus: int
    priority: float
    age: float
    nodes: frozenset[str] = frozenset()
    spare: int = 0
    needs: tuple[tuple[str, int], ...] = ()

    def on(self, node: str) -> int:
        """GPUs of its narrowest width on a node."""
        return dict(self.needs).get(node, self.gpus - self.spare)

    @property
    def gives(self) -> int:
        """GPUs that preempting it frees: those it can spare, or all of its GPUs."""
        return self.spare or self.gpus


@dataclass(frozen=True)
class Preemptor:
    """A queued task that could start; `waited` is its total seconds in the queue, `nodes` those it fits. `needs` are its GPUs
    on nodes where they are not `gpus`."""

    task: str
    tenant: str
    gpus: int
    waited: float
    nodes: frozenset[str]
    needs: tuple[tuple[str, int], ...] = ()

    def on(self, node: str) -> int:
        """GPUs of its narrowest width on a node."""
        return dict(self.needs).get(node, self.gpus)


@dataclass(frozen=True)
class Preemption:
    """The victims to requeue, in this order, and the preemptor they make room for; the sentence is for the victims' owners.

    Without victims, the node has room that the plan reserved for another task: the preemptor takes it.
    """

    preemptor: Preemptor
    node: str
    victims: tuple[Held, ...]
    sentence: str


def preemption(
    preemptors: Iterable[Preemptor], held: Iterable[Held], nodes: Iterable[PlanNode], owed: Mapping[str, float], bound: float
) -> Preemption | None:
    """The longest-waiting preemptor that is covered by its due, past the bound, and satisfiable; or None.

    `owed` is `fair_share.owed`. Call again after applying the answer, with the granted preemptor among `held`.
    """
    held = list(held)
    ledger = _Ledger(held, list(nodes), owed)
    for preemptor in sorted(preemptors, key=lambda preemptor: (-preemptor.waited, preemptor.task)):
        if preemptor.waited < bound or not ledger.covers(preemptor):
            continue
        options = [
            found for node in ledger.worthy(preemptor) for found in [ledger.make_room(node, preemptor)] if found is not None
        ]
        if options:
            node, victims = min(options, key=lambda option: ledger.loss(option[1]))
            return Preemption(preemptor, node, victims, ledger.sentence(preemptor, victims))
    return None


def next_bound(preemptors: Iterable[Preemptor], held: Iterable[Held], owed: Mapping[str, float], bound: float) -> float | None:
    """Seconds until the next currently covered preemptor passes the bound; None if none will. A timer replans then. A GPU
    counts as one, whatever its node is worth."""
    ledger = _Ledger(list(held), [], owed)
    return min((bound - c.waited for c in preemptors if c.waited < bound and ledger.covers(c)), default=None)


class _Ledger:
    """Bookkeeping per tenant and node: GPUs held, owed and free."""

    def __init__(self, held: list[Held], nodes: list[PlanNode], owed: Mapping[str, float]) -> None:
        self._held, self._owed = held, owed
        self._worth = defaultdict(lambda: 1.0, {node.id: node.worth for node in nodes})
        self._holds: dict[str, float] = defaultdict(float)
        highest: dict[str, float] = defaultdict(float)
        for placed in held:
            self._holds[placed.tenant] += placed.gpus * self._worth[placed.node]
            highest[placed.tenant] = max(highest[placed.tenant], placed.priority)
        self._urgency = {placed.task: placed.priority / highest[placed.tenant] for placed in held}
        self._free = {node.id: node.gpus for node in nodes if not node.drained}
        for placed in held:
            if placed.node in self._free:
                self._free[placed.node] -= placed.gpus

    def covers(self, preemptor: Preemptor) -> bool:
        """Whether the tenant's due covers the preemptor on some node that it fits."""
        return any(self._covers(preemptor, node) for node in preemptor.nodes)

    def _covers(self, preemptor: Preemptor, node: str) -> bool:
        due = self._owed.get(preemptor.tenant, 0.0)
        return entitled(preemptor.on(node) * self._worth[node], self._holds.get(preemptor.tenant, 0.0), due)

    def worthy(self, preemptor: Preemptor) -> list[str]:
        """The nodes that it fits, without those of negligible worth beside others: CPU slots repay no due of GPUs."""
        best = max((self._worth[node] for node in preemptor.nodes), default=0.0)
        return sorted(node for node in preemptor.nodes if self._worth[node] > NEGLIGIBLE * best)

    def make_room(self, node: str, preemptor: Preemptor) -> tuple[str, tuple[Held, ...]] | None:
        """The node and the fewest victims that make room there, biggest borrower first; None if they do not suffice."""
        if node not in self._free or not self._covers(preemptor, node):
            return None
        worth = self._worth[node]
        excess = {tenant: held - self._owed.get(tenant, 0.0) for tenant, held in self._holds.items()}
        shortfall = self._owed.get(preemptor.tenant, 0.0) - self._holds.get(preemptor.tenant, 0)
        spare = {other: free for other, free in self._free.items() if other != node}
        free, victims = self._free[node], dict[str, Held]()
        left = {placed.task: placed for placed in self._held if placed.node == node}
        while free < preemptor.on(node):
            lends = [
                p for p in left.values() if p.tenant != preemptor.tenant and p.gives * worth - excess[p.tenant] < shortfall
            ]
            moves = {p.task: self._elsewhere(p, spare) for p in left.values()}
            takeable = [p for p in left.values() if p in lends or moves[p.task]]
            if not takeable:
                return None
            victim = min(takeable, key=lambda p: (p not in lends, -excess[p.tenant], self._urgency[p.task], p.age, p.task))
            home, given = moves[victim.task], victim.gives
            if victim not in lends and home:
                spare[home] -= victim.on(home)
                given = victim.gpus
            else:
                excess[victim.tenant] -= given * worth
            del left[victim.task]
            if given < victim.gpus:
                left[victim.task] = replace(victim, gpus=victim.gpus - given, spare=0)
            victims.setdefault(victim.task, victim)
            free += given
        return node, tuple(victims.values())

    def _elsewhere(self, placed: Held, spare: Mapping[str, int]) -> str | None:
        """Another node with room for the task at its narrowest width; of several the one with the least free GPUs."""
        homes = [(free, node) for node, free in spare.items() if node in placed.nodes and free >= placed.on(node)]
        return min(homes)[1] if homes else None

    def sentence(self, preemptor: Preemptor, victims: tuple[Held, ...]) -> str:
        def stands(tenant: str) -> str:
            return f"holds {self._holds.get(tenant, 0.0):.4g} of {self._owed.get(tenant, 0.0):.3g} GPUs it is owed"

        lenders = "; ".join(f"{tenant} {stands(tenant)}" for tenant in sorted({v.tenant for v in victims} - {preemptor.tenant}))
        said = f"which {stands(preemptor.tenant)} and waited {preemptor.waited:.0f} s"
        return f"Preempted for {preemptor.task} of {preemptor.tenant}, {said}" + (f"; {lenders}." if lenders else ".")

    def loss(self, victims: tuple[Held, ...]) -> tuple[int, float, float]:
        """Sort key of what preempting these costs: how many, how urgent, how long they ran."""
        return len(victims), sum(self._urgency[v.task] for v in victims), sum(v.age * v.gpus for v in victims)
