"""An idealised placement, which says how much of what waiting costs sharing can save: no planner has its freedoms.

It knows how long each task lasts, serves other tasks whenever one arrives or ends, and pays for no preemption, move or join.
GPUs are divided among tasks as a fluid is: there are no nodes, bases, memory or bounds. Tasks are served in the order of their
weighted remaining cost, up to `level` tasks a GPU, all at equal progress; each shares its
passes with `level` others. The best level is taken. A heuristic: another order may save more.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.sharing_sim.step_times import PASS, step_seconds
from benchmarks.simulator.arrivals import Arrival

LEVELS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)


def least_completion(tasks: Sequence[Arrival], gpus: int) -> float:
    """Mean weighted completion in seconds, at the best level."""
    return min(_completion(tasks, gpus, level) for level in LEVELS)


def _completion(tasks: Sequence[Arrival], gpus: int, level: float) -> float:
    weights, width = np.array([task.priority for task in tasks]), np.array([task.gpus for task in tasks])
    at, left = np.array([float(task.at) for task in tasks]), np.array([float(task.true) for task in tasks])
    step = np.array([step_seconds(task.batch_size) for task in tasks])
    rows, ended, now = step - PASS, np.full(len(tasks), np.nan), 0.0
    order_cost = width * (rows + PASS / level) / step / weights
    while (open_ := np.isnan(ended)).any():
        here = np.flatnonzero(open_ & (at <= now))
        coming = at[open_ & (at > now)].min(initial=np.inf)
        if not len(here):
            now = float(coming)
            continue
        served, used = [], 0
        for one in here[np.argsort(left[here] * order_cost[here], kind="stable")]:
            if used + width[one] <= level * gpus:
                served.append(one)
                used += width[one]
        together = max(1.0, used / gpus)
        asked = float((width[served] * (PASS / together + rows[served]) / step[served]).sum())
        speed = 1.0 if used <= gpus else min(1.0, gpus / asked)
        seconds = min(float(left[served].min()) / speed, float(coming) - now)
        left[served] -= speed * seconds
        now += seconds
        done = [one for one in served if left[one] <= 1e-9 * max(1, tasks[one].true)]
        ended[done] = now
    return float(np.average(ended - at, weights=weights))
