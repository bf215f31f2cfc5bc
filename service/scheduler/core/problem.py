"""The scheduling problem: nodes, what runs, what waits. Values only: knows no database, no clock and no solver.

Times are whole seconds from the moment of the snapshot. A task keeps its GPUs, all on one node, from start to end.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.joins.slowdowns import Member, Sharing

_CHURN_PART = 16  # moving a planned task costs 1/16 of an average completion (more: holes stay open; less: tasks keep moving)
NEVER = 1 << 40  # seconds; longer than any plan
UNITS = 1000  # limit units per GPU of the fastest type
LATE_FACTOR = 4  # a second past its deadline costs a task this many times its weight, on top of the second itself


def limit_units(worth: float) -> int:
    """Limit units per GPU of this worth; 0 for a CPU slot beside GPUs."""
    return round(worth * UNITS)


@dataclass(frozen=True)
class PlanNode:
    """Identical GPUs, or CPU slots in place of them. A drained node finishes its running tasks and takes no new ones.

    `worth` is what each of its GPUs counts in shares, dues and limits: 1 on nodes of the fleet's fastest type.
    """

    id: str
    gpus: int
    drained: bool = False
    worth: float = 1.0

    @property
    def units(self) -> int:
        """Limit units per GPU of this node."""
        return limit_units(self.worth)


@dataclass(frozen=True)
class Limit:
    """The most GPUs that a tenant may hold at once over all nodes, in GPUs of the fastest type; slower GPUs count less. As many
    more (`beside`) of its quota are held on nodes that are not in the problem."""

    tenant: str
    gpus: int
    beside: int = 0

    @property
    def units(self) -> int:
        return self.gpus * UNITS


@dataclass(frozen=True)
class Preemptible:
    """What preempting a running task costs. Seconds: `age` that it has waited and run, `ran` that it has run, `resume` until it
    trains again once it has GPUs. `weight` > 0 is the cost of a second of its completion, beside `Queued.preempts`."""

    weight: int
    age: int
    ran: int
    resume: int
    deadline: int | None = None


@dataclass(frozen=True)
class RunningExecutor:
    """A task on its node, where it stays for `remaining` > 0 seconds: or several tasks that share an executor, until the last
    of them ends.

    `members` are those whom others may join, and with whom; empty: nobody may. With several members, `id` and `tenant` are the
    first's. `correction` is their measured slowdown over the predicted one, at least 1. `preemptible` is None where it is not
    preempted for shorter tasks. `sharers` are, where nobody may join several tasks, each one's tenant and the GPUs that it
    would run on alone.
    """

    id: str
    node: str
    gpus: int
    remaining: int
    tenant: str = ""
    members: tuple[Member, ...] = ()
    correction: float = 1.0
    preemptible: Preemptible | None = None
    sharers: tuple[tuple[str, int], ...] = ()

    @property
    def _holders(self) -> tuple[tuple[str, int], ...]:
        return tuple((member.tenant, member.gpus) for member in self.members) or self.sharers or ((self.tenant, self.gpus),)

    @property
    def tenants(self) -> frozenset[str]:
        """Whose tasks are there."""
        return frozenset(tenant for tenant, _ in self._holders)

    def part_of(self, tenant: str) -> float:
        """The part of its GPUs that counts for this tenant: those of several count by how wide each would run."""
        holders = self._holders
        return sum(gpus for holder, gpus in holders if holder == tenant) / sum(gpus for _, gpus in holders)

    def units_of(self, tenant: str, each: int) -> int:
        """The limit units of `each` GPU that count for this tenant."""
        return round(self.gpus * each * self.part_of(tenant))


@dataclass(frozen=True)
class Width:
    """A width: run a task on so many GPUs. `seconds` is its duration on each of the problem's nodes, > 0; None where unfit.

    `needs` are the GPUs on each node, of a narrowest width that differs by node; empty: `gpus`, which is their least, on each.
    """

    gpus: int
    seconds: tuple[int | None, ...]
    needs: tuple[int, ...] = ()

    def on(self, node: int) -> int:
        """GPUs on the node at this place."""
        return self.needs[node] if self.needs else self.gpus


class Arrived(NamedTuple):
    """A task that arrived `ago` seconds before the snapshot, on `gpus` GPUs for an expected `seconds`; its state is any."""

    ago: int
    gpus: int
    seconds: int


@dataclass(frozen=True)
class Queued:
    """A waiting task. `gpus`, `seconds` and `needs` are its narrowest width, as in Width; `wider` the others it could run at.

    `weight` > 0 is the cost of a second of its completion; `planned` is its node in the previous plan; `deadline` may lie in
    the past; `waited` is its seconds in the queue, `ran` those it ran before it came back. `preempts` is its weight beside
    those of running tasks, which it may preempt; 0: none. `barred` maps nodes that it would fit but may not run on to the
    reason (eligibility.Bar); its seconds there are None. `batch` is the batch whose makespan it counts for. `sharing` is what
    it would bring to an executor of each node, None where it may share none; empty: nowhere.
    """

    id: str
    gpus: int
    weight: int
    seconds: tuple[int | None, ...]
    planned: str | None = None
    tenant: str = ""
    deadline: int | None = None
    wider: tuple[Width, ...] = ()
    barred: tuple[tuple[str, str], ...] = ()
    waited: int = 0
    batch: str | None = None
    sharing: tuple[Sharing | None, ...] = ()
    ran: int = 0
    preempts: int = 0
    needs: tuple[int, ...] = ()

    def on(self, node: int) -> int:
        """GPUs of its narrowest width on the node at this place."""
        return self.needs[node] if self.needs else self.gpus

    @cached_property
    def least(self) -> int | NDArray[np.int64]:
        """As `on`, of all nodes at once: one number where it is the same on each."""
        return np.array(self.needs, np.int64) if self.needs else self.gpus

    @cached_property
    def on_fastest(self) -> int:
        """GPUs of its narrowest width on its fastest node."""
        if not self.needs or self.shortest is None:
            return self.gpus
        return self.on(self.seconds.index(self.shortest))

    @cached_property
    def shortest(self) -> int | None:
        """Its duration on the fastest node at its narrowest width; None if it fits none."""
        return min(filter(None, self.seconds), default=None)

    @cached_property
    def widths(self) -> tuple[Width, ...]:
        """All widths, narrowest first."""
        return (Width(self.gpus, self.seconds, self.needs), *self.wider)


@dataclass(frozen=True)
class Start:
    """A queued task on `gpus` GPUs of a node from `start` to `end`."""

    task: str
    node: str
    start: int
    end: int
    gpus: int


@dataclass(frozen=True)
class SchedulingProblem:
    """`queued` is in order of arrival, which breaks ties. `closed`: no more tasks will arrive; plans minimize makespan.

    `recent` are the latest arrivals, oldest first, from which those to come are foreseen. `leave`: seconds until a running task
    that is preempted for a shorter one has left its GPUs; None: none is preempted. `dues`: the GPUs that each tenant may
    hold by right, in GPUs of the fastest type; empty where one tenant is active.
    """

    nodes: tuple[PlanNode, ...]
    running: tuple[RunningExecutor, ...]
    queued: tuple[Queued, ...]
    limits: tuple[Limit, ...] = ()
    closed: bool = False
    recent: tuple[Arrived, ...] = ()
    leave: int | None = None
    dues: tuple[tuple[str, float], ...] = ()

    @cached_property
    def seconds(self) -> NDArray[np.int64]:
        """Seconds of each queued task (rows) at its narrowest width on each node (columns), int64; NEVER: it does not fit."""
        table: NDArray[np.int64] = np.empty((len(self.queued), len(self.nodes)), np.int64)
        for at, task in enumerate(self.queued):
            table[at] = row_of(task.seconds)
        return table

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """As `seconds`, with NEVER also on drained nodes and where the tenant's limit is too low for the task."""
        drained = np.array([node.drained for node in self.nodes], bool)
        table = np.where(drained, NEVER, self.seconds) if drained.any() else self.seconds
        most = {limit.tenant: limit.units for limit in self.limits}
        if not most:
            return table
        units = np.array([node.units for node in self.nodes], np.int64)
        asked = self.asked * units[None, :]
        allowed = np.array([most.get(task.tenant, NEVER) for task in self.queued], np.int64)[:, None]
        within: NDArray[np.int64] = np.where(asked > allowed, NEVER, table)
        return within

    @cached_property
    def asked(self) -> NDArray[np.int64]:
        """GPUs of each queued task (rows) at its narrowest width: one column, or one for each node if those of some differ."""
        column: NDArray[np.int64] = np.array([task.gpus for task in self.queued], np.int64)[:, None]
        if not any(task.needs for task in self.queued):
            return column
        table = np.repeat(column, len(self.nodes), axis=1)
        for at, task in enumerate(self.queued):
            table[at] = task.least
        return table

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each node among the problem's, by id."""
        return {node.id: at for at, node in enumerate(self.nodes)}

    @cached_property
    def units(self) -> dict[str, int]:
        """Limit units per GPU of each node, by node id."""
        return {node.id: node.units for node in self.nodes}

    @cached_property
    def shortest(self) -> NDArray[np.int64]:
        """Each queued task's duration on its fastest node, int64; NEVER if it fits none."""
        shortest: NDArray[np.int64] = self.seconds.min(axis=1, initial=NEVER)
        return shortest

    @cached_property
    def placeable(self) -> tuple[Queued, ...]:
        """The queued tasks that fit, at their narrowest width, a node that is not drained and their tenant's limit."""
        fits: list[bool] = np.any(self.table < NEVER, axis=1).tolist()
        return tuple(task for task, some in zip(self.queued, fits, strict=True) if some)

    @cached_property
    def row(self) -> dict[str, int]:
        """Each queued task's row of `table`, by id."""
        return {task.id: at for at, task in enumerate(self.queued)}

    @cached_property
    def churn(self) -> int:
        """The cost of moving a planned task to another node, in the objective's unit."""
        if not self.placeable:
            return 0
        seconds = int(self.shortest[[self.row[task.id] for task in self.placeable]].sum())
        weights = sum(task.weight for task in self.placeable)
        return seconds * weights // (len(self.placeable) ** 2 * _CHURN_PART)


Seconds = tuple[int | None, ...]  # by node


def alike(seconds: Seconds) -> bool:
    """Whether the duration is the same on every node: one number then stands for the row, which is many times faster."""
    return bool(seconds) and seconds.count(seconds[0]) == len(seconds)


def row_of(seconds: Seconds) -> int | list[int]:
    """The row in a form that numpy broadcasts."""
    if alike(seconds):
        return NEVER if seconds[0] is None else seconds[0]
    return [NEVER if s is None else s for s in seconds]
