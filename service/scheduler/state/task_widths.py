"""The widths of the waiting tasks, from rows: how long each would take on which nodes, without those that are barred."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from service.fleet.base_models.base_downloads import BaseDownloads
from service.fleet.models import Node
from service.scheduler.core.eligibility import Bars
from service.scheduler.core.problem import NEVER, Limit, Width
from service.scheduler.estimate.node_shapes import Shapes
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.state.host_eligibility import Hosts, delayed
from service.tasks.models import Task


class Fastest(NamedTuple):
    """A task at its narrowest width on the node that is fastest for it: seconds, GPUs there, and what each of these counts."""

    seconds: int
    gpus: int
    worth: float

    @property
    def weighted(self) -> float:
        """Its GPUs there, in GPUs of the fleet's fastest type."""
        return self.gpus * self.worth


class TaskWidths(NamedTuple):
    """Of each queued task: its widths, narrowest first; the nodes that it would fit but may not run on; and what it would take
    where no node understands it."""

    widths: Mapping[str, Sequence[Width]]
    fastest: Mapping[str, Fastest]
    barred: Bars
    lacking: dict[str, str]


def widths_of(
    tasks: Sequence[Task],
    nodes: Mapping[str, Node],
    worths: Mapping[str, float],
    quotas: Sequence[Limit],
    work: Workload,
    hosts: Hosts,
    downloads: BaseDownloads,
) -> TaskWidths:
    """`worths`: of a GPU of each node."""
    least = min(worths.values(), default=1.0)
    shapes, most = Shapes(nodes.values()), {quota.tenant: int(quota.gpus / least) for quota in quotas}
    widths: dict[str, Sequence[Width]] = {task.id: work.widths(task, shapes, most.get(task.tenant_id, NEVER)) for task in tasks}
    needs = {task.id: work.needs(task) for task in tasks}
    barred, lacking = hosts.bars(tasks, needs, widths), dict[str, str]()
    for task in tasks:
        kept = barred.get(task.id, {})
        widths[task.id] = tuple(delayed(hosts.narrowed(task, widths[task.id], kept), downloads.expected(task.base_model)))
        if (words := hosts.lacking(task, needs[task.id], kept)) is not None:
            lacking[task.id] = words
    fastest = {id: _fastest(narrow, [*worths.values()]) for id, (narrow, *_) in widths.items()}
    return TaskWidths(widths, fastest, barred, lacking)


def _fastest(narrow: Width, worths: Sequence[float]) -> Fastest:
    known = ((seconds, worths[at], at) for at, seconds in enumerate(narrow.seconds) if seconds is not None)
    first = min(known, default=None)
    return Fastest(1, narrow.gpus, 1.0) if first is None else Fastest(first[0], narrow.on(first[2]), first[1])
