"""Prediction intervals of planned starts and ends: each task's spread, propagated to the tasks that wait for it.

Values only. A start waits for the last task that ends before it on its node, so its interval follows that task's end.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.scheduler.core.problem import RunningExecutor, Start
from service.scheduler.estimate.task_duration import Estimate


@dataclass(frozen=True)
class Spread:
    """Bounds of a duration relative to its expected value: 0.6 to 1.5 is between 40 % shorter and 50 % longer."""

    low: float = 1.0
    high: float = 1.0


def spread(found: Estimate) -> Spread:
    """The interval of an estimate relative to its expected seconds."""
    return Spread(found.low / found.seconds, found.high / found.seconds)


@dataclass(frozen=True)
class PredictedInterval:
    """Seconds from now, low first; the plan's own time lies within."""

    start: tuple[float, float]
    end: tuple[float, float]


def intervals(
    running: Sequence[RunningExecutor], starts: Sequence[Start], spreads: Mapping[str, Spread]
) -> dict[str, PredictedInterval]:
    """The intervals of every running and every started or planned task, by id. A task without a spread has a fixed duration."""
    found: dict[str, PredictedInterval] = {}
    ends: dict[str, list[tuple[int, float, float]]] = defaultdict(list)  # of each node: planned end, low, high
    for run in running:
        spread = spreads.get(run.id, Spread())
        between = PredictedInterval((0.0, 0.0), (run.remaining * min(1.0, spread.low), run.remaining * max(1.0, spread.high)))
        found[run.id] = between
        ends[run.node].append((run.remaining, *between.end))
    for known in ends.values():
        known.sort()
    for start in sorted(starts, key=lambda start: (start.start, start.end)):
        spread, seconds = spreads.get(start.task, Spread()), start.end - start.start
        low, high = _waits(ends[start.node], start.start)
        between = PredictedInterval((low, high), (low + seconds * min(1.0, spread.low), high + seconds * max(1.0, spread.high)))
        found[start.task] = between
        known, end = ends[start.node], (start.end, *between.end)
        known.insert(bisect_right(known, end), end)
    return found


def _waits(ends: list[tuple[int, float, float]], start: int) -> tuple[float, float]:
    """The interval around `start`: that of the last end before it on the node."""
    if start == 0:
        return 0.0, 0.0
    at = bisect_right(ends, (start, float("inf"), float("inf")))
    if not at:
        return float(start), float(start)
    end, low, high = ends[at - 1]
    return min(float(start), low + start - end), max(float(start), high + start - end)
