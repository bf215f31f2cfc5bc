"""The live executors at one moment, with what the planner must know of each: who is there, how long for, who may join."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime

from contract.compatibility.capabilities import SHARING
from service.fleet.base_models.base_downloads import BaseDownloads
from service.fleet.models import Node, Placement
from service.scheduler.core.fair_share import completion_weight
from service.scheduler.core.joins.slowdowns import Sharing
from service.scheduler.core.problem import RunningExecutor
from service.scheduler.estimate.node_shapes import shape_of
from service.scheduler.estimate.prediction_intervals import Spread, spread
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.state.executors import LiveTask, executor_of, grouped
from service.tasks.models import Task

LEAVING_SECONDS = 10  # expected time until a task that was asked to leave has left
_UNREAD_SECONDS = 60  # least expected remaining time of a running task that cannot be read


class LiveExecutors:
    """`troubled` are nodes that take no tasks, or one at a time: nobody joins an executor there."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        live: Sequence[tuple[Placement, Task]],
        work: Workload,
        now: datetime,
        troubled: Collection[str],
    ) -> None:
        self._nodes, self._live, self._work, self._now = nodes, live, work, now
        self._by_executor = grouped(placed for placed, _ in live)
        self._tenants = {placed.id: task.tenant_id for placed, task in live}
        self._widths = {placed.id: self._narrowest(placed, task) for placed, task in live}
        self.joinable = frozenset(
            node.id
            for node in nodes.values()
            if SHARING in (node.capabilities or ()) and node.drained_at is None and node.id not in troubled
        )

    def busy(self) -> dict[str, int]:
        """Devices that executors hold, by node."""
        found = Counter[str]()
        for node, devices in self._by_executor:
            found[node] += len(devices)
        return found

    def held(self) -> dict[str, dict[str, float]]:
        """GPUs by tenant and type. Those that several tasks share count in parts, as a plan counts them."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for run in self._runs():
            for tenant in run.tenants:
                found[tenant][self._nodes[run.node].device_type] += run.gpus * run.part_of(tenant)
        return found

    def limit_units(self, tenant: str, each: Mapping[str, int]) -> int:
        """The limit units that the tenant holds, as a plan counts them; `each`: of one GPU, by node."""
        return sum(run.units_of(tenant, each[run.node]) for run in self._runs() if tenant in run.tenants)

    def _runs(self) -> Iterator[RunningExecutor]:
        """Each executor with its sharers, without how long it runs."""
        for (node, devices), placements in self._by_executor.items():
            sharers = tuple((self._tenants[placed.id], self._width_alone(placed)) for placed in placements)
            yield RunningExecutor(placements[0].id, node, len(devices), 1, sharers=sharers)

    def tasks(
        self,
        standing: Mapping[str, float],
        spreads: MutableMapping[str, Spread],
        downloads: BaseDownloads,
        due_in: Callable[[Task], int | None],
    ) -> list[LiveTask]:
        """Each live task with what is left of it alone; adds their `spreads`. `due_in`: seconds until the deadline of one that
        can be read."""
        highest: dict[str, int] = defaultdict(int)
        for _, task in self._live:
            highest[task.tenant_id] = max(highest[task.tenant_id], task.priority)
        found = []
        for placed, task in self._live:
            alone = self._width_alone(placed)
            node = self._nodes[placed.node_id]
            if placed.leaving is not None:
                found.append(LiveTask(placed, task, LEAVING_SECONDS, None, gpus=alone))
            elif task.id not in self._work.specs:
                left = (placed.expected_end - self._now).total_seconds() if placed.expected_end is not None else 0.0
                found.append(LiveTask(placed, task, max(_UNREAD_SECONDS, round(left)), None, gpus=alone))
            else:
                estimate = self._work.estimate(task, node.device_type, alone)
                spreads[task.id] = spread(estimate)
                rank = completion_weight(task.priority / highest[task.tenant_id], standing.get(task.tenant_id, 1.0), 0.0)
                sharing = self._work.sharing(task, shape_of(node), alone)
                seconds = round(estimate.seconds) + downloads.left(placed, task, self._now)
                found.append(LiveTask(placed, task, max(1, seconds), sharing, rank, alone, due_in(task)))
        return found

    def _width_alone(self, placed: Placement) -> int:
        """GPUs that the task would run on without the others on its executor: a joiner may be narrower than that."""
        first = self._by_executor[executor_of(placed)][0]
        return len(placed.device_indexes) if first.id == placed.id else self._widths[placed.id]

    def _narrowest(self, placed: Placement, task: Task) -> int:
        return self._work.narrowest_running(task, shape_of(self._nodes[placed.node_id]), len(placed.device_indexes))

    def sharing(self, task: Task) -> tuple[Sharing | None, ...]:
        """What a waiting task would bring to an executor of each node; empty where it may join none."""
        if not self.joinable or self._work.bound(task) <= 1:
            return ()
        nodes = self._nodes.values()
        shapes = {*map(shape_of, nodes)}
        kinds = {shape: self._work.sharing(task, shape, self._work.narrowest(task, shape)) for shape in shapes}
        found = tuple(kinds[shape_of(node)] if node.id in self.joinable else None for node in nodes)
        return found if any(found) else ()
