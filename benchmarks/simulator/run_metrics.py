"""Metrics of a finished run. Times in seconds; slowdown is (end - arrival) / the task's own true duration.

`completion_weighted_fixed` covers the tasks that may not be wider than they ask for.
"""

from collections.abc import Iterable, Sequence
from statistics import fmean, median

import numpy as np

from benchmarks.simulator.run_record import Outcome, Ran


def metrics(outcome: Outcome) -> dict[str, float]:
    """Raises ValueError if a task never ended."""
    ran = outcome.ran
    lost = [r.task.id for r in ran if r.ended is None]
    if lost:
        raise ValueError(f"{len(lost)} tasks never ended, {lost[0]} among them")
    ends = [(r, r.ended - r.task.at) for r in ran if r.ended is not None]
    completions = [seconds for _, seconds in ends]
    slowdowns = [seconds / r.task.true for r, seconds in ends]
    makespan = max(r.task.at + seconds for r, seconds in ends) - min(r.task.at for r in ran)
    busy = sum((end - start) * r.task.gpus for r in ran for _, start, end in r.placed)
    planned = outcome.moves + outcome.kept
    return {
        "makespan": makespan,
        "completion_mean": fmean(completions),
        "completion_p95": float(np.percentile(completions, 95)),
        "completion_weighted": _weighted(ran),
        "completion_weighted_fixed": _weighted([r for r in ran if r.task.max_gpus is None]),
        "slowdown_p99": float(np.percentile(slowdowns, 99)),
        "wait_max": max((r.started or 0) - r.task.at for r in ran),
        "utilisation": busy / (makespan * outcome.setup.nodes * outcome.setup.node_gpus),
        "churn": outcome.moves / planned if planned else 0.0,
        "deadlines_missed": _missed(ran),
        "jain": jain(outcome.record.together.values()),
        "together_seconds": outcome.record.together_seconds,
        "covered_wait_max": outcome.record.covered_wait,
        "preempted": outcome.preempted,
        "preempted_for_shorter": outcome.for_shorter,
        "slowdown_longest_max": max((r.ended - r.task.at) / r.task.true for r in _longest(ran) if r.ended is not None),
        "plans": outcome.plans,
        "plan_ms_p50": 1000 * median(outcome.wall),
        "plan_ms_p99": float(1000 * np.percentile(outcome.wall, 99)),
        "plan_cpu_ms_p50": 1000 * median(outcome.cpu),
        "plan_cpu_ms_p99": float(1000 * np.percentile(outcome.cpu, 99)),
    }


def _longest(ran: Sequence[Ran]) -> list[Ran]:
    """The longest tenth of the tasks, whom preemption for shorter ones could starve."""
    return sorted(ran, key=lambda r: -r.task.true)[: max(1, len(ran) // 10)]


def _missed(ran: Sequence[Ran]) -> float:
    """Fraction of the deadlines that were missed; 0 without any."""
    due = [(r.ended, r.task.deadline) for r in ran if r.task.deadline is not None]
    return sum(ended is None or ended > deadline for ended, deadline in due) / max(1, len(due))


def _weighted(ran: Sequence[Ran]) -> float:
    """Mean completion by weight; 0 if there are none."""
    weights = sum(r.task.priority for r in ran)
    return sum(r.task.priority * (r.ended - r.task.at) for r in ran if r.ended is not None) / max(1, weights)


def jain(values: Iterable[float]) -> float:
    """Jain's index of equality: 1 when all are equal, 1/n when one has everything; 1 for no values."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
