"""Whether a tenant that is owed GPUs gets them now, and from whom. Values only: decides, and does nothing.

A tenant may borrow what stands idle. When another, still under what it is owed, has waited longer than the bound, the
biggest borrower gives back its lowest-priority, youngest placement; never so much that it falls as far under its own due
as the claimant was. So the largest shortfall only shrinks, and nobody takes turns at preempting each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.scheduler.problem import Node


@dataclass(frozen=True)
class Held:
    """A running task. `age` is seconds since it was placed."""

    task: str
    tenant: str
    node: str
    gpus: int
    priority: float
    age: float


@dataclass(frozen=True)
class Claim:
    """A queued task; `nodes` are those it fits."""

    task: str
    tenant: str
    gpus: int
    waited: float
    nodes: frozenset[str]


@dataclass(frozen=True)
class Preemption:
    """Who goes back to the queue, in this order, and for whom; the sentence is for the victims' owners."""

    claim: Claim
    node: str
    victims: tuple[Held, ...]
    sentence: str


def preemption(
    claims: Iterable[Claim], held: Iterable[Held], nodes: Iterable[Node], owed: Mapping[str, int], bound: float
) -> Preemption | None:
    """The first claim, longest waiting first, that is owed its GPUs, is past the bound, and can be satisfied; or None."""
    held = list(held)
    holds: dict[str, int] = {}
    for placed in held:
        holds[placed.tenant] = holds.get(placed.tenant, 0) + placed.gpus
    free = {node.id: node.gpus - sum(p.gpus for p in held if p.node == node.id) for node in nodes if not node.drained}
    for claim in sorted(claims, key=lambda claim: -claim.waited):
        due = owed.get(claim.tenant, 0)
        if claim.waited <= bound or holds.get(claim.tenant, 0) + claim.gpus > due:
            continue
        options = [
            found
            for node in free
            if node in claim.nodes
            for found in [_on(node, free[node], claim, held, holds, owed)]
            if found
        ]
        if options:
            node, victims = min(options, key=lambda option: _loss(option[1]))
            return Preemption(claim, node, victims, _sentence(claim, victims, holds, owed))
    return None


def _on(
    node: str, free: int, claim: Claim, held: list[Held], holds: Mapping[str, int], owed: Mapping[str, int]
) -> tuple[str, tuple[Held, ...]] | None:
    """The node with the fewest victims that make room there, biggest borrower first; None if they do not suffice."""
    excess = {tenant: gpus - owed.get(tenant, 0) for tenant, gpus in holds.items()}
    shortfall = owed[claim.tenant] - holds.get(claim.tenant, 0)
    victims: list[Held] = []
    left = [placed for placed in held if placed.node == node and placed.tenant != claim.tenant]
    while free < claim.gpus:
        takeable = [placed for placed in left if placed.gpus - excess[placed.tenant] < shortfall]
        if not takeable:
            return None
        victim = min(takeable, key=lambda placed: (-excess[placed.tenant], placed.priority, placed.age))
        left.remove(victim)
        victims.append(victim)
        excess[victim.tenant] -= victim.gpus
        free += victim.gpus
    return (node, tuple(victims)) if victims else None  # room without a victim is the planner's to use


def _loss(victims: tuple[Held, ...]) -> tuple[int, float, float]:
    """What giving these back costs: how many, how urgent, how far they had come."""
    return len(victims), sum(v.priority for v in victims), sum(v.age * v.gpus for v in victims)


def _sentence(claim: Claim, victims: tuple[Held, ...], holds: Mapping[str, int], owed: Mapping[str, int]) -> str:
    lenders = ", ".join(f"{t} held {holds[t]} of {owed.get(t, 0)} it is owed" for t in sorted({v.tenant for v in victims}))
    return (
        f"Preempted for {claim.task} of {claim.tenant}, which holds {holds.get(claim.tenant, 0)} of {owed[claim.tenant]} GPUs "
        f"it is owed and waited {claim.waited:.0f} s; {lenders}."
    )
