"""Holds a long task back for expected arrivals, if they lose more by its start than it costs to delay it.

Arrivals are expected at their recent rate.

Without preemption a long task that takes the last free GPUs makes every shorter arrival wait until others end. While it is held
back, the task and the queue behind it wait instead. Both losses are weighted seconds of completion, from what the problem
says: recent arrivals, expected ends of running tasks, weights. Where running tasks are preempted for shorter ones
(`problem.leave`), an arrival waits only until the long task has left, so that hardly any is held back. Values only.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.problem import Arrived, Queued, SchedulingProblem, Start
from service.scheduler.core.timeline import Timeline

ENOUGH = 8  # arrivals that make a rate; fewer say nothing
_HORIZONS = (1, 4, 16, 64, 256)  # arrivals over which the rate is taken
RECENT = 300  # newest arrivals that a problem should name
_MIX = 100  # newest arrivals, whose sizes are those to come

Real = NDArray[np.float64]


def queue_size(gpus: int, seconds: int) -> float:
    """What a task counts in the order of the queue, before its weight: seconds x root of GPUs."""
    return seconds * sqrt(gpus)


def lasting_rate(recent: Sequence[Arrived]) -> float:
    """Arrivals per second: the lowest over the last 1, 4, 16, ... of them, so that no burst counts as lasting, and a lull does.

    `recent` is oldest first; fewer than `ENOUGH` have no rate.
    """
    if len(recent) < ENOUGH:
        return 0.0
    many = [count for count in _HORIZONS if count < len(recent)] + [len(recent)]
    return min(count / max(1, recent[-count].ago) for count in many)


class ExpectedArrivals:
    """The arrivals to come while one plan is made. `order` is the queue by rank.

    Nothing is held back without arrivals, nor while nothing runs: then those that came did not keep the fleet busy.
    """

    def __init__(self, problem: SchedulingProblem, order: Sequence[Queued]) -> None:
        self._problem = problem
        blind = problem.closed or not problem.running or not order
        self._rate = 0.0 if blind else lasting_rate(problem.recent)
        mix = problem.recent[-_MIX:]
        self._seconds: dict[int, Real] = {}  # by GPUs: expected seconds of recent arrivals, ascending
        found = defaultdict[int, list[int]](list)
        for arrived in mix:
            found[arrived.gpus].append(arrived.seconds)
        self._sizes = {gpus: [queue_size(gpus, seconds) for seconds in sorted(all_)] for gpus, all_ in found.items()}
        for gpus, all_ in found.items():
            self._seconds[gpus] = np.array(sorted(all_), np.float64)
        self._each = self._rate / max(1, len(mix))  # arrivals per second that each recent one stands for
        self._weight = median_low(task.weight for task in order) if order else 1
        self._fleet = sum(node.gpus for node in problem.nodes if not node.drained)
        self._behind = dict(zip((task.id for task in order), _behind(order), strict=True))
        self._gains: dict[tuple[int, int], Real] = {}
        self.held: dict[str, int] = {}  # the tasks that `until` held back, and until when; each plan clears it

    def hold_until(self, task: Queued, start: Start, timeline: Timeline) -> int | None:
        """The second until which holding the task back is better than `start`, its start at 0 on `timeline`; None: start it.

        A task with a deadline is never held back, and none that has waited longer than it will take.
        """
        if not self._rate or task.deadline is not None or task.waited > start.end:
            return None
        gain, last, mine = 0.0, 0, queue_size(task.on_fastest, task.shortest or start.end)
        for gpus, sizes in self._sizes.items():
            shorter = bisect_left(sizes, mine)
            blocked = timeline.blocked(task, start, gpus) if shorter else 0
            if self._problem.leave is not None and task.batch is None:
                blocked = min(blocked, self._problem.leave)  # an arrival takes the task's GPUs back when it comes
            if blocked:
                gain += float(self._gain(gpus, blocked)[shorter - 1])
                last = max(last, blocked)
        loss = last * (task.weight + self._behind[task.id] * start.gpus / self._fleet)
        if gain <= loss:
            return None
        self.held[task.id] = last
        return last

    def _gain(self, gpus: int, blocked: int) -> Real:
        """Weighted seconds that arrivals of this width save over `blocked` seconds: entry m - 1 for the m shortest recent ones.

        Of arrivals at rate r and mean duration p, r t / (1 + r p) find the GPUs free within t (one server, no queue), and save
        t / 2 on average. The best cut below m counts, since arrivals are held back for shorter ones in turn.
        """
        if (gpus, blocked) not in self._gains:
            served = self._each * blocked * np.arange(1, len(self._sizes[gpus]) + 1)
            served /= 1 + self._each * self._seconds[gpus].cumsum()
            self._gains[gpus, blocked] = np.maximum.accumulate(served) * self._weight * blocked / 2
        return self._gains[gpus, blocked]


def _behind(order: Sequence[Queued]) -> list[int]:
    """The weight of all tasks behind each."""
    weights = np.array([task.weight for task in order], np.int64)
    found: list[int] = (weights[::-1].cumsum()[::-1] - weights).tolist()
    return found
