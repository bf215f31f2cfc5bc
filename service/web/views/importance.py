"""What each hyperparameter was worth: the share of the jobs' variance in best loss that its values explain.

A main effect only: omega squared of a one-way analysis of variance on the logarithm of the best validation loss, which is eta
squared without its bias for many groups (Hays 1963). The interval comes from a bootstrap over the jobs. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST_GROUPS = 8  # distinct values; a parameter that has more is cut into quarters of equal counts
_DRAWS = 200
_LEAST_JOBS = 6


@dataclass(frozen=True)
class Worth:
    """Shares of the variance, 0 to 1: the estimate and the bootstrap's 5th and 95th percentile."""

    name: str
    share: float
    low: float
    high: float


def worths(configs: Sequence[Mapping[str, Any]], losses: Sequence[float | None], names: Sequence[str]) -> list[Worth]:
    """Each parameter's worth, the greatest first. Empty where too few jobs have a loss to say anything."""
    kept = [(config, loss) for config, loss in zip(configs, losses, strict=True) if loss is not None and 0 < loss < math.inf]
    if len(kept) < _LEAST_JOBS:
        return []
    values = np.log([loss for _, loss in kept])
    draws = np.random.default_rng(0).integers(0, len(kept), (_DRAWS, len(kept)))
    found = []
    for name in names:
        groups = _groups([config.get(name) for config, _ in kept])
        if groups.max() == 0 or groups.max() + 1 >= len(kept):
            continue
        drawn = [_omega_squared(groups[draw], values[draw]) for draw in draws]
        low, high = np.percentile(drawn, [5, 95])
        found.append(Worth(name, _omega_squared(groups, values), float(low), float(high)))
    return sorted(found, key=lambda worth: -worth.share)


def _groups(given: Sequence[Any]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Each job's group: its value, or the quarter that its number lies in."""
    numbers = all(isinstance(value, int | float) for value in given)
    distinct = sorted(set(given)) if numbers else sorted({str(value) for value in given})
    if numbers and len(distinct) > _MOST_GROUPS:
        edges = np.quantile(np.asarray(given, float), [0.25, 0.5, 0.75])
        return np.searchsorted(edges, np.asarray(given, float)).astype(np.int64)
    places = {value: place for place, value in enumerate(distinct)}
    return np.asarray([places[value if numbers else str(value)] for value in given], np.int64)


def _omega_squared(groups: "np.ndarray[Any, np.dtype[np.int64]]", values: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    total = float(((values - values.mean()) ** 2).sum())
    counts = np.bincount(groups)
    present = counts > 0
    kinds, left = int(present.sum()), len(values) - int(present.sum())
    if total <= 0 or kinds < 2 or left < 1:
        return 0.0
    means = np.bincount(groups, values)[present] / counts[present]
    between = float((counts[present] * (means - values.mean()) ** 2).sum())
    within = (total - between) / left
    return max(0.0, (between - (kinds - 1) * within) / (total + within))
