"""Who is owed how much: weighted dominant shares over decayed use, and what a second of a task's completion weighs for it.

Values only: knows no database and no clock. Use is an average of GPUs that forgets by halves, as Kueue's admission fair
sharing keeps it; a start counts at once (the entry penalty), or a burst of small tasks would be through before it showed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

WEIGHT = 1000  # of priority 1 in a tenant at its share, on arrival; weights are whole numbers
_LEVEL = 4.0  # a tenant without any use weighs 2 ** this; one at twice its share the inverse
_MOST = 8.0  # in powers of two, either way
AGING_SECONDS = 6 * 3600  # a task that has waited this long weighs twice


@dataclass(frozen=True)
class Share:
    """A tenant: its weight among the others, GPUs held now by type, and its decayed use by type, in GPUs."""

    tenant: str
    weight: float = 1.0
    held: Mapping[str, int] = field(default_factory=dict)
    use: Mapping[str, float] = field(default_factory=dict)
    active: bool = True  # runs or waits for something


def decayed(use: float, held: float, seconds: float, half_life: float) -> float:
    """The use after `seconds` more of holding `held` GPUs."""
    keep: float = 0.5 ** (seconds / half_life)
    return keep * use + (1 - keep) * held


def entered(use: float, gpus: int, seconds: float, half_life: float) -> float:
    """The use with the entry penalty of a task that starts: what `seconds` on its GPUs will add."""
    added: float = (1 - 0.5 ** (seconds / half_life)) * gpus
    return use + added


def dominant(share: Share, capacity: Mapping[str, int]) -> float:
    """The largest part of any GPU type that the tenant has used, per unit of its weight."""
    parts = [share.use.get(kind, 0.0) / total for kind, total in capacity.items() if total]
    return max(parts, default=0.0) / share.weight


def standing(shares: Iterable[Share], capacity: Mapping[str, int]) -> dict[str, float]:
    """Each tenant's dominant share over what is fair among the active ones: 1 is at its share, 0 has used nothing."""
    shares = list(shares)
    fair = 1 / max(1e-9, sum(share.weight for share in shares if share.active))
    return {share.tenant: dominant(share, capacity) / fair for share in shares}


def owed(shares: Iterable[Share], gpus: int) -> dict[str, int]:
    """Whole GPUs that each active tenant may hold by right: its part of `gpus`, rounded down, never above them together."""
    shares = [share for share in shares if share.active]
    total = sum(share.weight for share in shares)
    return {share.tenant: int(gpus * share.weight / total) for share in shares}


def weight(priority: float, stands: float, waited: float) -> int:
    """What a second of completion costs: priority x the tenant's deficit x age, a whole number of at least 1.

    `stands` is the tenant's `standing`, `waited` the task's seconds in the queue.
    """
    level = max(-_MOST, min(_MOST, _LEVEL * (1 - stands)))
    return max(1, round(WEIGHT * priority * 2**level * (1 + waited / AGING_SECONDS)))


def jain(values: Iterable[float]) -> float:
    """Jain's index of equality: 1 when all are equal, 1/n when one has everything; 1 for no values."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
