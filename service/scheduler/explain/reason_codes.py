"""Why each waiting task waits, as a code and its numbers. Values only: writes no sentences, knows no database.

The code names what must change for the task to start: room, a quota, another tenant's turn, a reservation, a drain.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from service.scheduler.core.eligibility import Bar
from service.scheduler.core.problem import UNITS, Limit, PlanNode, Queued, SchedulingProblem, Start
from service.scheduler.core.timeline import AvailabilityProfile


class Code(StrEnum):
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    FAIR_SHARE = "fair_share"
    LARGER_TASK_RESERVED = "larger_task_reserved"
    SHORTER_TASKS_EXPECTED = "shorter_tasks_expected"
    NODE_DRAINED = "node_drained"
    NO_NODE_FITS = "no_node_fits"
    NO_NODE_UNDERSTANDS = "no_node_understands"
    NODE_QUARANTINED = "node_quarantined"
    NODE_DISK_FULL = "node_disk_full"
    BACKING_OFF = "backing_off"
    PAUSED = "paused"
    WAITING_FOR_VERSION = "waiting_for_version"  # without numbers: no plan of this version includes the task


_HOPE = tuple(Bar)
_BARRED = {
    Bar.RESTING: Code.BACKING_OFF,
    Bar.DISK_FULL: Code.NODE_DISK_FULL,
    Bar.QUARANTINED: Code.NODE_QUARANTINED,
    Bar.NOT_APPLYING: Code.NODE_QUARANTINED,
    Bar.REFUSED: Code.NO_NODE_UNDERSTANDS,
    Bar.NOT_UNDERSTOOD: Code.NO_NODE_UNDERSTANDS,
}


@dataclass(frozen=True)
class Reason:
    """Why one task waits. `numbers` by code:

    - all but paused and waiting_for_version: `asked` GPUs, on its planned node or the fewest
    - larger_task_reserved, shorter_tasks_expected: `free` GPUs of the freest node that has room for it, and `room_asked`, those
      that it takes there
    - waiting_for_capacity: `free` GPUs on the freest node that it fits, `fitting` GPUs of all nodes that it fits, `ahead`
      tasks planned before it, `soonest` (seconds until GPUs of a node that it fits come free)
    - waiting_for_quota: `limit` and `held` GPUs of its tenant, of the fastest type, and those of the limit that it holds
      `beside` the problem's nodes; a task that asks for more than the limit never starts, and is told of none beside.
      Where it would exceed the quota only once another of its tenant's tasks starts, that one as for larger_task_reserved
    - fair_share: `standing` of its tenant (1 is at its share, 2 has used twice that) and `other_standing` of the tenant whose
      `other_task` goes first although it came later
    - larger_task_reserved: `reserved_task`, its `reserved_gpus` and `reserved_start` in seconds
    - node_drained: `nodes` that it would fit but that are drained, and `free` GPUs of the freest one
    - no_node_fits: `largest`, GPUs of the largest node, `nodes` in the fleet, and `wide_enough`, nodes with enough GPUs (whose
      memory is then too small)

    - no_node_understands, node_quarantined, node_disk_full, backing_off: `nodes` that it fits but may not run on, and
      `node`, the most hopeful; with the first code none can train its spec, with the others it waits for a node to recover or
      to end its rest

    `place` counts from 1 in order of expected start; `start` and `end` are seconds from now, None without a plan.
    """

    task: str
    code: Code
    place: int | None = None
    start: int | None = None
    end: int | None = None
    node: str | None = None
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)


def paused(task: str) -> Reason:
    return Reason(task, Code.PAUSED)


def reasons(
    problem: SchedulingProblem,
    starts: Sequence[Start],
    standing: Mapping[str, float] | None = None,
    held: Collection[str] = (),
) -> tuple[Reason, ...]:
    """One reason for every queued task that does not start at 0, in queue order.

    `standing` is `fair_share.standing` by tenant (None: there is one tenant), `held` the tasks held back for arrivals.
    """
    seen = _PlanSums(problem, starts, standing or {}, held)
    found = []
    for at, task in enumerate(problem.queued):
        start = seen.planned.get(task.id)
        if start is not None and start.start == 0:
            continue
        code, numbers = seen.why(at, task, start)
        reason = Reason(task.id, code, seen.places[task.id], numbers={"asked": seen.asked(task, start)} | numbers)
        found.append(replace(reason, start=start.start, end=start.end, node=start.node) if start else reason)
    return tuple(found)


Numbers = dict[str, int | float | str]


class _PlanSums:
    """A problem and its plan, with the sums that several tasks' reasons need."""

    def __init__(
        self, problem: SchedulingProblem, starts: Sequence[Start], standing: Mapping[str, float], held: Collection[str]
    ) -> None:
        self._problem, self._standing, self._back = problem, standing, held
        self.planned = {start.task: start for start in starts}
        self._tasks = {task.id: (at, task) for at, task in enumerate(problem.queued)}
        self._later = sorted((s for s in starts if s.start > 0), key=lambda s: (s.start, s.end))
        unplaced = [task.id for task in problem.queued if task.id not in self.planned]
        self.places = {id: place for place, id in enumerate([*(s.task for s in self._later), *unplaced], 1)}
        self._limits = {limit.tenant: limit for limit in problem.limits}

    def asked(self, task: Queued, start: Start | None) -> int:
        """GPUs of its narrowest width on its planned node, else the fewest on those that it fits."""
        if start is not None:
            return task.on(self._problem.places[start.node])
        return min((task.on(self._problem.places[node.id]) for node in self._fitting(task)), default=task.gpus)

    def _room(self, task: Queued, nodes: list[PlanNode]) -> bool:
        """Whether it could start on one of the nodes now."""
        return any(self._free[node.id] >= task.on(self._problem.places[node.id]) for node in nodes)

    def _roomiest(self, task: Queued, nodes: list[PlanNode]) -> Numbers:
        """Of the freest of the nodes on which it could start now."""
        node = max((node for node in nodes if self._room(task, [node])), key=lambda node: self._free[node.id])
        return {"free": self._free[node.id], "room_asked": task.on(self._problem.places[node.id])}

    def why(self, at: int, task: Queued, start: Start | None) -> tuple[Code, Numbers]:
        fitting = self._fitting(task)
        if not fitting and task.barred:
            bar, node = min((_HOPE.index(Bar(bar)), node) for node, bar in task.barred)
            return _BARRED[_HOPE[bar]], {"nodes": len(task.barred), "node": node}
        if not fitting:
            wide = sum(node.gpus >= task.gpus for node in self._problem.nodes)
            largest = max((node.gpus for node in self._problem.nodes), default=0)
            return Code.NO_NODE_FITS, {"largest": largest, "nodes": len(self._problem.nodes), "wide_enough": wide}
        takes = [node for node in fitting if not node.drained]
        free = max((self._free[node.id] for node in takes), default=0)
        limit, held = self._limits.get(task.tenant), self._held[task.tenant]
        if limit is not None and self._beyond(limit, held, task, start, takes or fitting):
            whole = replace(limit, gpus=limit.gpus + limit.beside)
            never = start is None and self._beyond(whole, held, task, start, takes or fitting)
            return Code.WAITING_FOR_QUOTA, _of_quota(limit, held) | ({"beside": 0} if never else {})
        drained, room = [node for node in fitting if node.drained], self._room(task, takes)
        if not takes or (not room and self._room(task, drained)):
            return Code.NODE_DRAINED, {"nodes": len(drained), "free": max(self._free[node.id] for node in drained)}
        if room:
            roomy = self._roomiest(task, takes)
            if task.id in self._back:
                return Code.SHORTER_TASKS_EXPECTED, roomy
            if limit is not None and (kept := self._quota_kept(limit, task, start, takes)) is not None:
                return Code.WAITING_FOR_QUOTA, _of_quota(limit, held) | kept
            return Code.LARGER_TASK_RESERVED, roomy | self._reserved(task, takes)
        ahead = self._before(at, task, start, {node.id for node in takes})
        if ahead is not None:
            return Code.FAIR_SHARE, ahead
        soonest = min((self._ends[node.id] for node in takes if node.id in self._ends), default=0)
        total = sum(node.gpus for node in takes)
        return Code.WAITING_FOR_CAPACITY, {
            "free": free, "fitting": total, "ahead": self.places[task.id] - 1, "soonest": soonest,
        }  # fmt: skip

    def _beyond(self, limit: Limit, held: int, task: Queued, start: Start | None, nodes: list[PlanNode]) -> bool:
        """Whether the limit keeps the task from starting now, or from ever starting on any node that it fits."""
        if start is None:
            return all(task.on(self._problem.places[node.id]) * node.units > limit.units for node in nodes)
        return self.asked(task, start) * self._problem.units[start.node] + held > limit.units

    def _quota_kept(self, limit: Limit, task: Queued, start: Start | None, takes: list[PlanNode]) -> Numbers | None:
        """The first planned start of its tenant that the limit would not allow if this task took free GPUs; None where it
        allows all of them on one of the nodes."""
        use, places = self._use[limit.tenant], self._problem.places
        if start is not None:
            use.take(start.start, start.end, -start.gpus * self._problem.units[start.node])
        able = [(task.on(places[node.id]) * node.units, node) for node in takes if self._room(task, [node])]
        spent = [(units, task.seconds[places[node.id]] or 0) for units, node in able]
        exceeded = all(use.earliest(units, seconds) > 0 for units, seconds in spent)
        mine = (one for one in self._later if self._tasks[one.task][1].tenant == limit.tenant and one.task != task.id)
        first = next((one for one in mine if exceeded and use.free(one.start) < spent[0][0]), None)
        if start is not None:
            use.take(start.start, start.end, start.gpus * self._problem.units[start.node])
        return (_reserved_for(first) if first is not None else {}) if exceeded else None

    def _fitting(self, task: Queued) -> list[PlanNode]:
        return [node for node, seconds in zip(self._problem.nodes, task.seconds, strict=True) if seconds is not None]

    @cached_property
    def _free(self) -> dict[str, int]:
        """Free GPUs by node after the plan's starts at 0."""
        free = {node.id: node.gpus for node in self._problem.nodes}
        for run in self._problem.running:
            free[run.node] -= run.gpus
        for start in self.planned.values():
            free[start.node] -= start.gpus if start.start == 0 else 0
        return free

    @cached_property
    def _held(self) -> dict[str, int]:
        """Limit units held by tenant, after the plan's starts at 0."""
        held, units = defaultdict[str, int](int), self._problem.units
        for run in self._problem.running:
            for tenant in run.tenants:
                held[tenant] += run.units_of(tenant, units[run.node])
        for start in self.planned.values():
            held[self._tasks[start.task][1].tenant] += start.gpus * units[start.node] if start.start == 0 else 0
        return held

    @cached_property
    def _use(self) -> dict[str, AvailabilityProfile]:
        """Free limit units of each tenant with a limit, over the plan's time."""
        use, units = {tenant: AvailabilityProfile(limit.units) for tenant, limit in self._limits.items()}, self._problem.units
        for run in self._problem.running:
            for tenant in run.tenants & use.keys():
                use[tenant].take(0, run.remaining, run.units_of(tenant, units[run.node]))
        for start in self.planned.values():
            if (tenant := self._tasks[start.task][1].tenant) in use:
                use[tenant].take(start.start, start.end, start.gpus * units[start.node])
        return use

    @cached_property
    def _ends(self) -> dict[str, int]:
        """Seconds until the first GPUs of each busy node come free."""
        ends: dict[str, int] = {}
        for node, end in [(run.node, run.remaining) for run in self._problem.running] + [
            (start.node, start.end) for start in self.planned.values() if start.start == 0
        ]:
            ends[node] = min(ends.get(node, end), end)
        return ends

    def _reserved(self, task: Queued, takes: list[PlanNode]) -> Numbers:
        """The first planned start that this task would delay if it took the free GPUs."""
        roomy = {node.id for node in takes if self._room(task, [node])}
        for start in self._later:
            if start.node in roomy and start.task != task.id:
                return _reserved_for(start)
        return {}

    def _before(self, at: int, task: Queued, start: Start | None, takes: set[str]) -> Numbers | None:
        """A task of a tenant with a lower standing that starts first although it arrived later."""
        mine = self._standing.get(task.tenant)
        if mine is None:
            return None
        for other in self._first_of_tenant.values():
            came, first = self._tasks[other.task]
            theirs = self._standing.get(first.tenant, mine)
            sooner = start is None or other.start < start.start
            if theirs < mine and came > at and sooner and other.node in takes:
                return {"standing": mine, "other_standing": theirs, "other_task": other.task}
        return None

    @cached_property
    def _first_of_tenant(self) -> dict[str, Start]:
        """Of each tenant's soonest starts, the one that arrived last: the likeliest to have overtaken another tenant's task."""
        found: dict[str, Start] = {}
        for start in sorted(self.planned.values(), key=lambda s: (s.start, -self._tasks[s.task][0])):
            found.setdefault(self._tasks[start.task][1].tenant, start)
        return found


def _of_quota(limit: Limit, held: int) -> Numbers:
    return {"limit": limit.gpus + limit.beside, "held": round(held / UNITS, 3), "beside": limit.beside}


def _reserved_for(start: Start) -> Numbers:
    return {"reserved_task": start.task, "reserved_gpus": start.gpus, "reserved_start": start.start}
