"""Who is owed how much: weighted fair shares over decayed use, and what a second of a task's completion weighs for it.

Values only: knows no database and no clock. Use is an average of GPUs that forgets by halves, as Kueue's admission fair
sharing keeps it; a start counts at once (the entry penalty), or a burst of small tasks would be through before it showed.
What a tenant holds up to its due is its right: those tasks go before everything that is borrowed. GPUs of different types are
summed by what they can do (`worth`), in units of the fleet's fastest type; where all are of one type that is their number.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from service.scheduler.estimate.gpu_types import hardware

WEIGHT = 1000  # of priority 1 in a tenant at its share, on arrival; weights are whole numbers
AGING_SECONDS = 6 * 3600  # a task that has waited this long weighs twice
_LEVEL = 4.0  # a tenant without any use weighs 2 ** this; one at twice its share the inverse
_MOST = 8.0  # in powers of two, either way
NEGLIGIBLE = 1e-3  # of a task's worth: CPU slots beside a GPU
_RIGHT = 10.0  # in powers of two: what a task gains that its tenant's due covers


@dataclass(frozen=True)
class Share:
    """A tenant: its weight among the others, GPUs held now by type, and its decayed use by type, in GPUs.

    `demand` is what its running and queued tasks ask for together, each at its narrowest, in GPUs of the fastest type; None
    if it is without bound. What one tenant does not want falls to the others, and what a task holds beyond its narrowest is
    borrowed.
    """

    tenant: str
    weight: float = 1.0
    held: Mapping[str, int] = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    active: bool = True  # runs or waits for something
    demand: float | None = None


@dataclass(frozen=True)
class Ask:
    """A queued task. `seconds` is its duration on the fastest node, `waited` its seconds in all queueings, `worth` what a GPU
    of that node counts."""

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
    """The use with the entry penalty of a task that starts: what `seconds` on its GPUs will add."""
    added: float = (1 - 0.5 ** (seconds / half_life)) * gpus
    return use + added


def worth(kinds: Iterable[str]) -> dict[str, float]:
    """What a GPU of each type counts: the rate it trains at, over that of the fastest of these types."""
    rates = {kind: hardware(kind).flops for kind in kinds}
    fastest = max(rates.values(), default=1.0)
    return {kind: rate / fastest for kind, rate in rates.items()}


def total(gpus: Mapping[str, float], worths: Mapping[str, float]) -> float:
    """GPUs by type as GPUs of the fastest type. Types without a worth are in the fleet no more, and count nothing."""
    return sum(number * worths.get(kind, 0.0) for kind, number in gpus.items())


def standing(shares: Iterable[Share], capacity: Mapping[str, int]) -> dict[str, float]:
    """Each tenant's part of the fleet's use over what is fair among the active ones: 1 is at its share, 0 has used nothing."""
    shares, worths = list(shares), worth(capacity)
    fair = total(capacity, worths) / max(1e-9, sum(share.weight for share in shares if share.active))
    return {share.tenant: total(share.use, worths) / share.weight / fair if fair else 0.0 for share in shares}


def owed(shares: Iterable[Share], gpus: float) -> dict[str, float]:
    """GPUs that each active tenant may hold by right, by weight: `gpus` together, or less where all want less.

    Weighted max-min: whoever wants less than its part gets what it wants, and the rest is shared out again.
    """
    open_ = sorted((s for s in shares if s.active), key=lambda s: _demand(s) / s.weight)
    left, weights = float(gpus), sum(share.weight for share in open_)
    due: dict[str, float] = {}
    for share in open_:
        due[share.tenant] = min(_demand(share), left * share.weight / weights)
        left, weights = left - due[share.tenant], weights - share.weight
    return due


def entitled(gpus: float, holds: float, due: float) -> bool:
    """Whether a task of `gpus` is covered by its tenant's due; one task always is, or small dues would never be paid."""
    return holds + gpus <= due + 1e-6 or holds <= NEGLIGIBLE * gpus


def weight(urgency: float, stands: float, waited: float, covered: bool = False) -> int:
    """What a second of completion costs: urgency x the tenant's deficit x age, a whole number of at least 1.

    `urgency` is the task's priority over the highest that it stands beside, at most 1; `stands` the tenant's `standing`,
    `waited` the task's seconds in the queue, `covered` whether its due covers the task.
    """
    level = max(-_MOST, min(_MOST, _LEVEL * (1 - stands))) + (_RIGHT if covered else 0.0)
    return max(1, round(WEIGHT * urgency * 2**level * (1 + waited / AGING_SECONDS)))


def weights(asks: Sequence[Ask], shares: Sequence[Share], capacity: Mapping[str, int]) -> dict[str, int]:
    """The weight of each queued task, by id.

    Each tenant's due covers what it holds and then its queue in the order of seconds x GPUs / (priority x age), tasks that
    would exceed it left out. With one active tenant there is nobody to have a right against.

    A priority orders its tenant's own tasks: it says which of them the due covers, and among those that it covers, or does
    not, it counts as a part of the highest. So no priority weighs anything against another tenant's task.
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
                found[ask.task] = weight(ask.priority / highest, stands.get(tenant, 0.0), ask.waited, covered)
    return found


def _in_tenant(ask: Ask) -> float:
    return ask.seconds * ask.gpus * ask.worth / (ask.priority * (1 + ask.waited / AGING_SECONDS))


def _demand(share: Share) -> float:
    return float("inf") if share.demand is None else float(share.demand)


def jain(values: Iterable[float]) -> float:
    """Jain's index of equality: 1 when all are equal, 1/n when one has everything; 1 for no values."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
