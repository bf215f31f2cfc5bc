"""The planner's snapshot: nodes, tasks, shares and dues, read at one moment as a SchedulingProblem. Decides nothing.

The plan writer compares the fences read here, and drops every task that changed since.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.batches.models import Batch
from service.dependencies import Dependencies
from service.fleet.base_models.base_downloads import BaseDownloads
from service.fleet.models import Node, Placement
from service.fleet.node_health.quarantine import unreadable_words
from service.scheduler.core import problem as p
from service.scheduler.core.eligibility import Bar
from service.scheduler.core.fair_share import Ask, Share, completion_weights, standing, total, worth
from service.scheduler.estimate.node_shapes import shape_of
from service.scheduler.estimate.prediction_intervals import PredictedInterval, Spread, intervals, spread
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.models import PlanRequest
from service.scheduler.state.batch_rows import Batches
from service.scheduler.state.executors import Executor, Shared, each_of, grouped, running_of
from service.scheduler.state.host_eligibility import Hosts
from service.scheduler.state.left_out import damage_of, needs_other
from service.scheduler.state.live_executors import LiveExecutors
from service.scheduler.state.preemption.gpu_reservations import GpuReservation, kept, reservations_of
from service.scheduler.state.preemption.preemption_costs import TenantDues, with_preemption
from service.scheduler.state.recent_arrivals import Arrival, recent_arrivals, waited_before
from service.scheduler.state.task_widths import TaskWidths, widths_of
from service.scheduler.state.usage_shares import capacity, held_on, limits, shares
from service.tasks.models import Job, Task
from service.tasks.plan_status import queue_status


@dataclass(frozen=True)
class HypotheticalTask:
    """A queued task without a row, and its jobs."""

    task: Task
    jobs: Sequence[Job]


@dataclass(frozen=True)
class Snapshot:
    """`tasks` are the queued and running ones, by id. `unread` are the queued ones that this version cannot read, and why,
    `damaged` those that no version can. A running task that cannot be read holds its GPUs in the problem, but is in
    `left_alone` instead of `placements`, so that the planner never reclaims them.

    `later` wait for a moment that their specs name. `reserved` are due starts on reserved GPUs.
    """

    at: datetime
    requests: tuple[int, ...]
    oldest: datetime | None  # of the requests
    problem: p.SchedulingProblem
    tasks: dict[str, Task]
    nodes: dict[str, Node]
    placements: dict[str, Placement]  # live, by task
    shares: tuple[Share, ...]
    standing: dict[str, float]
    needs: dict[str, int]  # bytes of each GPU, by queued task
    waited: dict[str, float]  # seconds in the queue in total, by queued task
    spreads: dict[str, Spread]
    work: Workload
    downloads: BaseDownloads
    left_alone: dict[str, Placement] = field(default_factory=dict)  # live, by task that only another version can read
    unread: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    later: dict[str, datetime] = field(default_factory=dict)
    reserved: tuple[p.Start, ...] = ()
    awaited: dict[str, GpuReservation] = field(default_factory=dict)  # reservations whose GPUs are still held
    troubles: dict[str, str] = field(default_factory=dict)  # nodes that get no tasks, or one at a time, and why
    lacking: dict[str, str] = field(default_factory=dict)  # tasks that no node understands, and what it would take
    unreadable: Mapping[str, str] = field(default_factory=dict)  # why nodes, by name, and what runs there are in none of this
    closed: frozenset[str] = frozenset()  # nodes that are drained or in trouble
    capacity: float = 0.0  # GPUs that tenants share, in GPUs of the fastest type
    live: tuple[p.RunningExecutor, ...] = ()  # the running tasks one by one, each with its own end

    @property
    def executors(self) -> dict[Executor, list[Placement]]:
        """All live placements by executor, oldest first, those of `left_alone` too."""
        return grouped((*self.placements.values(), *self.left_alone.values()))

    def between(self, starts: Sequence[p.Start] = (), ends: Mapping[str, Shared] | None = None) -> dict[str, PredictedInterval]:
        """The prediction intervals of running tasks and of `starts`, each at its own width."""
        wide = {start.task: self._spread_of(start) for start in starts if start.gpus > self.tasks[start.task].gpus}
        return intervals(self.each_running(ends), starts, self.spreads | wide)

    def each_running(self, ends: Mapping[str, Shared] | None = None) -> list[p.RunningExecutor]:
        """The running tasks one by one, and those whose GPUs are reserved. `ends`: of those whom others join by a plan."""
        moved = [replace(run, remaining=ends[run.id].end) if ends and run.id in ends else run for run in self.live]
        known = {run.id for run in moved}
        return [*moved, *(run for run in self.problem.running if run.id not in known)]

    def narrowest(self, task: str, node: str) -> int:
        """GPUs of a task's narrowest width on a node."""
        return self.work.narrowest(self.tasks[task], shape_of(self.nodes[node]))

    def _spread_of(self, start: p.Start) -> Spread:
        return spread(self.work.estimate(self.tasks[start.task], self.nodes[start.node].device_type, start.gpus))


def read(
    session: Session,
    dependencies: Dependencies,
    reserved: Sequence[GpuReservation] = (),
    asked: Sequence[HypotheticalTask] = (),
    batch: Batch | None = None,
) -> Snapshot:
    """Read the present moment, with reservations (`reserved`), and with tasks that have no rows (`asked`, of `batch`, if any).

    The session's transaction must be repeatable read and new.
    """
    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    pending = select(func.clock_timestamp(), func.array_agg(PlanRequest.id), func.min(PlanRequest.created_at))
    now, requests, oldest = session.execute(pending).one()
    ready = session.scalars(select(Node).where(Node.status == "ready").order_by(Node.id)).all()
    there = Placement.ended_at.is_(None), Placement.node_id.in_([node.id for node in ready if not node.unreadable])
    running = select(Placement, Task).join(Task, Task.id == Placement.task_id).where(*there).order_by(Placement.id)
    live = [(placed, task) for placed, task in session.execute(running)]
    queued = list(session.scalars(select(Task).where(Task.status == TaskStatus.QUEUED).order_by(Task.queued_at, Task.id)))
    batches = Batches.of(session, [*queued, *(task for _, task in live)], batch)
    queued = [task for task in queued if not batches.gathers(task)]
    for one in asked:
        one.task.queued_at = now
        queued.append(one.task)
    unsaved = {one.task.id: one.jobs for one in asked}
    work = Workload(session, [task for _, task in live] + queued, dependencies.estimate_cache, unsaved)
    seen = _SnapshotBuilder(session, dependencies, now, ready, live, queued, work, reserved, batches)
    return seen.snapshot(tuple(requests or ()), oldest)


class _SnapshotBuilder:
    """Builds the Snapshot from the rows of one moment."""

    def __init__(
        self,
        session: Session,
        dependencies: Dependencies,
        now: datetime,
        ready: Sequence[Node],
        live: Sequence[tuple[Placement, Task]],
        queued: list[Task],
        work: Workload,
        reserved: Sequence[GpuReservation],
        batches: Batches,
    ) -> None:
        self._reserved, self._batches = reserved, batches
        self._session, self._dependencies, self._now, self._work = session, dependencies, now, work
        self._nodes = {node.id: node for node in ready if not node.unreadable}
        self._unreadable = [node for node in ready if node.unreadable]
        self._live = live
        self._all_queued = queued
        self._damaged = {task.id: why for task in queued if (why := damage_of(task)) is not None}
        rest = [task for task in queued if task.id not in self._damaged]
        self._unread = {task.id: why for task in rest if (why := needs_other(work, task)) is not None}
        sound = [task for task in rest if task.id not in self._unread]
        self._later = {
            task.id: moment for task in sound if (moment := work.specs[task.id].not_before) is not None and moment > now
        }
        self._queued = [task for task in sound if task.id not in self._later]
        self._spreads: dict[str, Spread] = {}
        self._waited: dict[str, float] = {}
        self._hosts = Hosts.of(self._nodes, {placed.node_id for placed, _ in live}, now, dependencies.settings)
        self._executors = LiveExecutors(self._nodes, live, work, now, self._hosts.troubles.keys())
        tasks = [*self._queued, *(task for _, task in live)]
        self._downloads = BaseDownloads(session, self._nodes, tasks, dependencies.settings.base_bytes_per_second)

    def snapshot(self, requests: tuple[int, ...], oldest: datetime | None) -> Snapshot:
        closed = frozenset(
            node.id for node in self._nodes.values() if node.drained_at is not None or node.id in self._hosts.troubles
        )
        gpus = capacity(self._nodes.values(), closed, self._executors.busy())
        worths = worth(gpus)
        self._worth = {node.id: worths[node.device_type] for node in self._nodes.values()}
        fleet = tuple(
            p.PlanNode(node.id, len(node.devices), node.takes_nothing_new, self._worth[node.id])
            for node in self._nodes.values()
        )
        tenants = {task.tenant_id for task in self._queued}
        quotas = limits(self._session, tenants, held_on(self._session, self._unreadable))
        widths = widths_of(self._queued, self._nodes, self._worth, quotas, self._work, self._hosts, self._downloads)
        shared = self._shares(widths)
        stands = standing(shared, gpus) if shared else {}
        live = self._executors.tasks(stands, self._spreads, self._downloads, self._due_in)
        running = running_of(live, self._executors.joinable)
        waiting = self._waiting(shared, gpus, widths)
        given = kept([*reservations_of(self._session, self._now), *self._reserved], fleet, running, waiting, quotas)
        problem = p.SchedulingProblem(fleet, given.running, given.queued, quotas, recent=self._recent(widths))
        if self._dependencies.settings.preempt_for_shorter_tasks:
            dues = TenantDues(shared, gpus)
            problem = with_preemption(problem, self._session, self._now, self._work, live, self._waited, self._queued, dues)
        return Snapshot(
            at=self._now,
            requests=requests,
            oldest=oldest,
            problem=problem,
            tasks={task.id: task for task in [*self._all_queued, *(task for _, task in self._live)]},
            nodes=self._nodes,
            placements={task.id: placed for placed, task in self._live if task.id in self._work.specs},
            left_alone={task.id: placed for placed, task in self._live if task.id not in self._work.specs},
            shares=tuple(shared),
            standing=stands,
            needs={task.id: self._work.bytes_per_gpu(task) for task in self._queued},
            waited=self._waited,
            spreads=self._spreads,
            work=self._work,
            downloads=self._downloads,
            unread=self._unread,
            damaged=self._damaged,
            later=self._later,
            reserved=given.due,
            awaited=given.awaited,
            troubles={id: trouble.sentence for id, trouble in self._hosts.troubles.items()},
            lacking=widths.lacking,
            unreadable={node.name: unreadable_words(node) for node in self._unreadable},
            closed=closed,
            capacity=total(gpus, worths),
            live=each_of(live, running),
        )

    def _waiting(self, shared: Sequence[Share], gpus: Mapping[str, int], widths: TaskWidths) -> list[p.Queued]:
        before, named = waited_before(self._session, self._queued), {node.name: node.id for node in self._nodes.values()}
        asks = []
        for task in self._queued:
            waited = (self._now - (task.queued_at or task.created_at)).total_seconds() + before.get(task.id, 0.0)
            self._waited[task.id] = max(0.0, waited)
            shortest, width, worth = widths.fastest[task.id]
            asks.append(Ask(task.id, task.tenant_id, width, shortest, task.priority, self._waited[task.id], worth))
        weigh = completion_weights(asks, shared, gpus)
        entries = queue_status.read_all(self._session)
        planned = {task.id: entry for task in self._queued if (entry := queue_status.entry_of(task, entries)) is not None}
        told = {id: named.get(entry.node) for id, entry in planned.items()}  # the planned node in the previous plan
        return [
            self._queueing(task, weigh[task.id], widths.widths[task.id], told.get(task.id), widths.barred.get(task.id, {}))
            for task in self._queued
        ]

    def _queueing(
        self, task: Task, rank: int, widths: Sequence[p.Width], planned: str | None, barred: Mapping[str, Bar]
    ) -> p.Queued:
        narrow, *wider = widths
        nodes = enumerate(zip(self._nodes.values(), narrow.seconds, strict=True))
        fits = next(((at, node.device_type) for at, (node, seconds) in nodes if seconds is not None), None)
        if fits is not None:
            self._spreads[task.id] = spread(self._work.estimate(task, fits[1], narrow.on(fits[0])))
        return p.Queued(
            id=task.id,
            gpus=narrow.gpus,
            weight=rank,
            seconds=narrow.seconds,
            needs=narrow.needs,
            planned=planned,
            tenant=task.tenant_id,
            deadline=self._due_in(task),
            wider=tuple(wider),
            barred=tuple((node, bar.value) for node, bar in barred.items()),
            waited=round(self._waited[task.id]),
            batch=self._batches.arranged(task),
            sharing=self._executors.sharing(task),
        )

    def _due_in(self, task: Task) -> int | None:
        deadline = self._batches.deadline(task, self._work.specs[task.id].deadline)
        return None if deadline is None else round((deadline - self._now).total_seconds())

    def _recent(self, widths: TaskWidths) -> tuple[p.Arrived, ...]:
        fastest, waiting = widths.fastest, dict[str, Arrival]()
        for task in self._queued:
            waiting[task.id] = (task.created_at or self._now, fastest[task.id].gpus, fastest[task.id].seconds)
        return recent_arrivals(self._session, self._now, waiting)

    def _shares(self, widths: TaskWidths) -> Sequence[Share]:
        held = self._executors.held()
        wanted: dict[str, float] = defaultdict(float)
        for placed, task in self._live:
            shape = shape_of(self._nodes[placed.node_id])
            least = self._work.narrowest_running(task, shape, len(placed.device_indexes))
            wanted[task.tenant_id] += least * self._worth[placed.node_id]
        for task in self._queued:
            wanted[task.tenant_id] += widths.fastest[task.id].weighted
        half_life = self._dependencies.settings.fair_share_half_life_seconds
        return shares(self._session, self._now, half_life, held, wanted) if len(wanted) > 1 else ()
