"""Weighted fair shares over decayed GPU use: which tenant is owed how much, and what a second of a task's completion weighs.

Values only: knows no database and no clock. Use is an average of GPUs with exponential decay by half-life, as in Kueue's
admission fair sharing; a start counts at once (the entry penalty), or a burst of small tasks would pass before it showed. GPUs
up to a tenant's due are its right: those tasks go before all borrowed ones. GPUs of different types are summed by speed
(`worth`), in units of the fleet's fastest type; with a single type that is their number.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from service.scheduler.core.gpu_types import hardware

WEIGHT = 1000  # of a task of priority 1 on arrival, whose tenant is at its share; weights are integers
AGING_SECONDS = 6 * 3600  # a task that has waited this long weighs twice
_LEVEL = 4.0  # a tenant without any use weighs 2 ** this; one at twice its share 2 ** -this
_MOST = 8.0  # largest exponent of 2, either way
NEGLIGIBLE = 1e-3  # part of a worth that counts as none: CPU slots beside a GPU
_RIGHT = 10.0  # exponent of 2: the factor for a task that its tenant's due covers


@dataclass(frozen=True)
class Share:
    """A tenant: its fair-share weight, the GPUs it holds now by type, and its decayed use by type, in GPUs.

    `demand` is what its running and queued tasks ask for together, each at its narrowest, in GPUs of the fastest type; None if
    unbounded. The part of its due that a tenant does not demand goes to the others, and what a task holds beyond its narrowest
    width is borrowed.
    """

    tenant: str
    weight: float = 1.0
    held: Mapping[str, float] = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    active: bool = True  # has running or waiting tasks
    demand: float | None = None


@dataclass(frozen=True)
class Ask:
    """A queued task. `seconds` is its duration on the fastest node, `waited` its total seconds in the queue, `worth` that of a
    GPU of that node."""

    task: str
    tenant: str
    gpus: int
    seconds: float
    priority: float
    waited: float
    worth: float = 1.0


def decayed(use: float, held: float, seconds: float, half_life: float) -> float:
    """The use after `seconds` more of holding `held` GPUs."""
    keep: float = 0.5 ** (seconds / half_life)
    return keep * use + (1 - keep) * held


def entered(use: float, gpus: int, seconds: float, half_life: float) -> float:
    """The use with the entry penalty of a starting task: what `seconds` on its GPUs will add."""
    added: float = (1 - 0.5 ** (seconds / half_life)) * gpus
    return use + added


def worth(kinds: Iterable[str]) -> dict[str, float]:
    """Each type's training rate per GPU, relative to the fastest of these types."""
    rates = {kind: hardware(kind).flops for kind in kinds}
    fastest = max(rates.values(), default=1.0)
    return {kind: rate / fastest for kind, rate in rates.items()}


def total(gpus: Mapping[str, float], worths: Mapping[str, float]) -> float:
    """GPUs by type as GPUs of the fastest type. Types without a worth have left the fleet and count nothing."""
    return sum(number * worths.get(kind, 0.0) for kind, number in gpus.items())


def standing(shares: Iterable[Share], capacity: Mapping[str, int]) -> dict[str, float]:
    """Each tenant's part of the fleet's use over its fair part among active tenants: 1 is at its share, 0 has used nothing."""
    shares, worths = list(shares), worth(capacity)
    fair = total(capacity, worths) / max(1e-9, sum(share.weight for share in shares if share.active))
    return {share.tenant: total(share.use, worths) / share.weight / fair if fair else 0.0 for share in shares}


def owed(shares: Iterable[Share], gpus: float) -> dict[str, float]:
    """The due of each active tenant: GPUs it may hold by right, by weight; together `gpus`, or less if all want less.

    Weighted max-min fairness: a tenant that wants less than its part gets what it wants, and the rest is shared out again.
    """
    open_ = sorted((s for s in shares if s.active), key=lambda s: _demand(s) / s.weight)
    left, weights = float(gpus), sum(share.weight for share in open_)
    due: dict[str, float] = {}
    for share in open_:
        due[share.tenant] = min(_demand(share), left * share.weight / weights)
        left, weights = left - due[share.tenant], weights - share.weight
    return due


def entitled(gpus: float, holds: float, due: float) -> bool:
    """Whether a tenant's due covers a task of `gpus` beside what it `holds`; always true for its first, or a tenant with a
    small due could never start one."""
    return holds + gpus <= due + 1e-6 or holds <= NEGLIGIBLE * gpus


def completion_weight(urgency: float, stands: float, waited: float, covered: bool = False) -> int:
    """Weight of a second of completion: urgency x the tenant's deficit x age, an integer of at least 1.

    `urgency` is the task's priority over the highest among its tenant's tasks on the same side of the due, at most 1; `stands`
    the tenant's `standing`, `waited` the task's seconds in the queue, `covered` whether its tenant's due covers the task.
    """
    level = max(-_MOST, min(_MOST, _LEVEL * (1 - stands))) + (_RIGHT if covered else 0.0)
    return max(1, round(WEIGHT * urgency * 2**level * (1 + waited / AGING_SECONDS)))


def completion_weights(asks: Sequence[Ask], shares: Sequence[Share], capacity: Mapping[str, int]) -> dict[str, int]:
    """The completion weight of each queued task, by id: see `completion_weight`.

    A tenant's due covers first what it holds, then its queue in the order of seconds x GPUs / (priority x age), skipping tasks
    that would exceed it. With only one active tenant no task counts as covered.

    A priority only orders its tenant's own tasks: it decides which of them the due covers, and then counts relative to the
    highest among the covered, or the uncovered, ones. So no priority outweighs another tenant's task.
    """
    stands, worths = standing(shares, capacity), worth(capacity)
    due = owed(shares, total(capacity, worths))
    holds = {share.tenant: total(share.held, worths) for share in shares}
    several = sum(share.active for share in shares) > 1
    queues: dict[str, list[Ask]] = defaultdict(list)
    for ask in asks:
        queues[ask.tenant].append(ask)
    found = {}
    for tenant, queue in queues.items():
        held, kinds = holds.get(tenant, 0.0), dict[bool, list[Ask]]()
        for ask in sorted(queue, key=_in_tenant):
            covered = several and entitled(ask.gpus * ask.worth, held, due.get(tenant, 0.0))
            held += ask.gpus * ask.worth if covered else 0
            kinds.setdefault(covered, []).append(ask)
        for covered, alike in kinds.items():
            highest = max(ask.priority for ask in alike)
            for ask in alike:
                found[ask.task] = completion_weight(ask.priority / highest, stands.get(tenant, 0.0), ask.waited, covered)
    return found


def comparable_weights(asks: Sequence[Ask], shares: Sequence[Share], capacity: Mapping[str, int]) -> dict[str, int]:
    """What a second of completion weighs of running and waiting tasks that are compared with each other, by id: as
    `completion_weight`, without regard to dues, a priority over the highest of its tenant's tasks here."""
    stands, highest = standing(shares, capacity), dict[str, float]()
    for ask in asks:
        highest[ask.tenant] = max(highest.get(ask.tenant, 0.0), ask.priority)
    return {
        ask.task: completion_weight(ask.priority / highest[ask.tenant], stands.get(ask.tenant, 1.0), ask.waited) for ask in asks
    }


def _in_tenant(ask: Ask) -> float:
    return ask.seconds * ask.gpus * ask.worth / (ask.priority * (1 + ask.waited / AGING_SECONDS))


def _demand(share: Share) -> float:
    return float("inf") if share.demand is None else float(share.demand)
