"""The timeline of every node's free GPUs, and where one more task would fit. The rules plan on it.

Knows no order of tasks and no objective.
"""

from bisect import bisect_left, bisect_right
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.problem import NEVER, Queued, SchedulingProblem, Start

Whole = NDArray[np.int64]


class AvailabilityProfile:
    """Free GPUs of a node, or free units of a tenant's limit, over time: a step function from 0 to infinity."""

    def __init__(self, gpus: int) -> None:
        self._times, self._free = [0], [gpus]

    def copy(self) -> "AvailabilityProfile":
        other = AvailabilityProfile(0)
        other._times, other._free = self._times.copy(), self._free.copy()
        return other

    def take(self, start: int, end: int, gpus: int) -> None:
        """Occupy `gpus` from `start` until `end`."""
        first, last = self._cut(start), self._cut(end)
        for at in range(first, last):
            self._free[at] -= gpus

    def free(self, at: int) -> int:
        return self._free[bisect_right(self._times, at) - 1]

    def earliest(self, gpus: int, seconds: int, after: int = 0) -> int:
        """The first moment, not before `after`, from which `gpus` stay free for `seconds`; NEVER if there is none.

        A request of 0 fits at once, even where a limit was lowered below what its tenant holds.
        """
        if gpus == 0:
            return after
        times, free = self._times, self._free
        at = bisect_right(times, after) - 1
        begin = after
        while at < len(times) and times[at] < begin + seconds:
            if free[at] < gpus:
                begin = times[at + 1] if at + 1 < len(times) else NEVER
            at += 1
        return begin

    def forever(self, gpus: int) -> list[int]:
        """The moments from which 1, 2, ... `gpus` GPUs stay free forever; NEVER for those that do not."""
        since = [NEVER] * gpus
        least, at = gpus, len(self._times) - 1
        while at >= 0 and least > 0:
            least = min(least, self._free[at])
            for more in range(max(0, least)):
                since[more] = self._times[at]
            at -= 1
        return since

    def _cut(self, moment: int) -> int:
        at = bisect_left(self._times, moment)
        if at == len(self._times) or self._times[at] != moment:
            self._times.insert(at, moment)
            self._free.insert(at, self._free[at - 1])
        return at


def _rows(since: list[list[int]]) -> Whole:
    """Pads to one row per node, with NEVER for GPUs that the node does not have."""
    rows: Whole = np.full((len(since), max(map(len, since), default=0)), NEVER, np.int64)
    for at, row in enumerate(since):
        rows[at, : len(row)] = row
    return rows


def _at(since: Whole, gpus: int | Whole) -> Whole:
    """Of `since[k, node]`, the moments for so many GPUs of each node, k + 1 of them; any where no node has as many."""
    found: Whole = since[gpus - 1] if isinstance(gpus, int) else since[np.minimum(gpus, len(since)) - 1, np.arange(len(gpus))]
    return found


class _Place(NamedTuple):
    """A candidate place; its tuple order is the preference: earliest end, planned node, fewest free GPUs, first node."""

    end: int
    elsewhere: bool
    free: int
    node: int
    start: int
    gpus: int


class Timeline:
    """All nodes' profiles and the tenants' limits while a plan is built."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self.problem = problem
        self._takes = np.array([not node.drained for node in problem.nodes], bool)
        self._profiles = [AvailabilityProfile(node.gpus) for node in problem.nodes]
        self._places = {node.id: at for at, node in enumerate(problem.nodes)}
        self._tenants = {task.id: task.tenant for task in problem.queued}
        self._limits = {limit.tenant: AvailabilityProfile(limit.units) for limit in problem.limits}
        self._units = [node.units for node in problem.nodes]
        self._sizes = np.array([node.gpus for node in problem.nodes], np.int64)
        self._planned = np.zeros(len(problem.nodes), bool)  # nodes with a later start: they may have holes
        for task in problem.running:
            self._profiles[self._places[task.node]].take(0, task.remaining, task.gpus)
            for tenant in task.tenants & self._limits.keys():
                units = task.units_of(tenant, self._units[self._places[task.node]])
                self._limits[tenant].take(0, task.remaining, units)
        self._soonest = _rows([p.forever(node.gpus) for p, node in zip(self._profiles, problem.nodes, strict=True)])
        self._now = np.array([profile.free(0) for profile in self._profiles], np.int64)
        self.most_free = self._most()  # free GPUs at time 0 on the node with the most

    def copy(self) -> "Timeline":
        """An independent copy."""
        other = copy(self)
        other._profiles = [profile.copy() for profile in self._profiles]
        other._limits = {tenant: profile.copy() for tenant, profile in self._limits.items()}
        other._planned, other._now = self._planned.copy(), self._now.copy()
        return other

    def put(self, start: Start) -> Start:
        self._take(start, 1)
        self._planned[self._places[start.node]] |= start.start > 0
        return start

    def now(self, task: Queued) -> Start | None:
        """Where the task can start at time 0, at its narrowest width, without delaying any start on the timeline."""
        seconds = self.problem.table[self.problem.row[task.id]]
        fits = np.flatnonzero((self._now >= task.least) & (seconds < NEVER))
        limit = self._limits.get(task.tenant)
        places = sorted(self._place(task, at, 0, int(seconds[at]), task.on(at)) for at in fits.tolist())
        for place in places:
            spent = place.end
            if limit is not None and limit.earliest(place.gpus * self._units[place.node], spent) > 0:
                continue
            if not self._planned[place.node] or self._profiles[place.node].earliest(place.gpus, spent) == 0:
                return self._start(task, place)
        return None

    def blocked(self, task: Queued, start: Start, gpus: int) -> int:
        """How long, once `start` is made, no node that the task fits has this many GPUs free; 0 if one has, or has none now."""
        fits = self.problem.table[self.problem.row[task.id]] < NEVER
        free = fits & (self._now >= gpus)
        home = self._places[start.node]
        if not free.any() or free.sum() > free[home] or self._now[home] - start.gpus >= gpus:
            return 0
        self._take(start, 1)
        least = NEVER
        for at in np.flatnonzero(fits & (self._sizes >= gpus)).tolist():
            if self._soonest[at, gpus - 1] < least:
                least = min(least, self._profiles[at].earliest(gpus, 1))
        self._take(start, -1)
        return least if least < NEVER else 0

    def best(self, task: Queued, after: int = 0) -> Start | None:
        """Where the task would end first at its narrowest width, not starting before `after`, holes included; its planned node
        if a move costs more."""
        seconds = self.problem.table[self.problem.row[task.id]]
        soonest = _at(self._soonest.T, task.least)
        ends = np.maximum(soonest, after) + seconds  # a lower bound: beside running tasks alone
        limit = self._limits.get(task.tenant)
        found: _Place | None = None
        for at in ends.argsort(kind="stable").tolist():
            if ends[at] >= NEVER or (found is not None and ends[at] > found.end):
                break
            begin = self._earliest(at, limit, task.on(at), int(seconds[at]), after)
            if begin < NEVER and (found is None or begin + seconds[at] <= found.end):
                place = self._place(task, at, begin, int(seconds[at]), task.on(at))
                found = place if found is None else min(found, place)
        if found is None:
            return None
        home = self._places.get(task.planned) if found.elsewhere and task.planned else None
        if home is not None and seconds[home] < NEVER:
            begin = self._earliest(home, limit, task.on(home), int(seconds[home]), after)
            if task.weight * (begin + int(seconds[home]) - found.end) <= self.problem.churn:
                found = self._place(task, home, begin, int(seconds[home]), task.on(home))
        return self._start(task, found)

    def widen(self, task: Queued, start: Start) -> Start:
        """Replace a start on the timeline by the width that ends soonest, on GPUs of one node that stay free meanwhile.

        Its start time stays. A start at 0 may change to an equally fast node, of several to the one with the least free GPUs.
        """
        limit, home = self._limits.get(task.tenant), self._places[start.node]
        self._take(start, -1)
        found = self._place(task, home, start.start, start.end - start.start, start.gpus)
        for width in task.wider:
            fits = [home] if start.start else np.flatnonzero(self._takes & (self._now >= width.gpus)).tolist()
            for at in fits:
                seconds = width.seconds[at]
                if seconds is None or task.seconds[at] != task.seconds[home] or start.start + seconds > found.end:
                    continue
                place = self._place(task, at, start.start, seconds, width.gpus)
                sooner = place.end < found.end or (place < found and found.gpus == width.gpus)
                if sooner and self._earliest(at, limit, width.gpus, seconds, start.start) == start.start:
                    found = place
        return self.put(self._start(task, found))

    def earlier(self, start: Start) -> Start:
        """The same task on the same node at the same width, as early as possible. It is not on the timeline."""
        task, at = self.problem.queued[self.problem.row[start.task]], self._places[start.node]
        seconds = next(width.seconds[at] for width in task.widths if width.on(at) == start.gpus)
        assert seconds is not None  # it was planned there
        begin = self._earliest(at, self._limits.get(task.tenant), start.gpus, seconds)
        return Start(start.task, start.node, begin, begin + seconds, start.gpus)

    def tails(self) -> "Tails":
        """The ends of everything placed so far. Consumes the timeline: the tails share its limits."""
        since = [profile.forever(node.gpus) for profile, node in zip(self._profiles, self.problem.nodes, strict=True)]
        return Tails(self.problem, since, self._limits)

    def _most(self) -> int:
        return int(self._now[self._takes].max(initial=0))

    def _take(self, start: Start, sign: int) -> None:
        at = self._places[start.node]
        self._profiles[at].take(start.start, start.end, sign * start.gpus)
        if start.start == 0:
            self._now[at] = self._profiles[at].free(0)
            self.most_free = self._most()
        limit = self._limits.get(self._tenants[start.task])
        if limit is not None:
            limit.take(start.start, start.end, sign * start.gpus * self._units[at])

    def _earliest(self, at: int, limit: AvailabilityProfile | None, gpus: int, seconds: int, after: int = 0) -> int:
        begin = self._profiles[at].earliest(gpus, seconds, after)
        while limit is not None and begin < NEVER:
            allowed = limit.earliest(gpus * self._units[at], seconds, begin)
            if allowed == begin:
                break
            begin = self._profiles[at].earliest(gpus, seconds, allowed)
        return begin

    def _place(self, task: Queued, at: int, begin: int, seconds: int, gpus: int) -> _Place:
        elsewhere = task.planned != self.problem.nodes[at].id
        return _Place(begin + seconds, elsewhere, self._profiles[at].free(begin), at, begin, gpus)

    def _start(self, task: Queued, place: _Place) -> Start:
        return Start(task.id, self.problem.nodes[place.node].id, place.start, place.end, place.gpus)


class Tails:
    """From when on each GPU is free forever: `since[k, node]` for k + 1 GPUs of a node."""

    def __init__(self, problem: SchedulingProblem, since: list[list[int]], limits: dict[str, AvailabilityProfile]) -> None:
        self._problem, self._limits = problem, limits
        self._units = [node.units for node in problem.nodes]
        self._rows = since
        self._since = np.ascontiguousarray(_rows(since).T)
        self._names = [node.id for node in problem.nodes]
        self._places = {name: at for at, name in enumerate(self._names)}

    def put(self, task: Queued, after: int = 0) -> Start | None:
        """Append the task behind all others at its narrowest, not before `after`: where it ends first, or its planned node if a
        move costs more."""
        begins = np.maximum(_at(self._since, task.least), after)
        ends = begins + self._problem.table[self._problem.row[task.id]]
        at = int(ends.argmin())
        if ends[at] >= NEVER:
            return None
        planned = self._places.get(task.planned) if task.planned else None
        if planned is not None and ends[planned] < NEVER:  # else it is drained now, or has lost GPUs
            at = planned if task.weight * int(ends[planned] - ends[at]) <= self._problem.churn else at
        gpus, begin, end = task.on(at), int(begins[at]), int(ends[at])
        limit = self._limits.get(task.tenant)
        if limit is not None:
            seconds = end - begin
            units = gpus * self._units[at]
            begin = limit.earliest(units, seconds, begin)
            end = begin + seconds
            limit.take(begin, end, units)
        row = self._rows[at]
        last = bisect_right(row, begin)
        row[last - gpus : last] = [end] * gpus
        row.sort()
        self._since[: len(row), at] = row
        return Start(task.id, self._names[at], begin, end, gpus)
