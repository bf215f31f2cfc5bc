"""What preempting a running task for a shorter one costs, from rows: input of core/preemption/shortest_remaining.py.

Only a task that has its executor to itself can be preempted, none that leaves, that belongs to a batch, or that this version
cannot read. Decides nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import extract, func, select
from sqlalchemy.orm import Session

from service.fleet.models import Placement
from service.scheduler.core.fair_share import Ask, Share, comparable_weights, owed, total, worth
from service.scheduler.core.problem import Preemptible, RunningExecutor, SchedulingProblem
from service.scheduler.estimate.task_workload import Workload
from service.scheduler.state.executors import LiveTask, executor_of
from service.scheduler.state.live_executors import LEAVING_SECONDS
from service.tasks.models import Task

RESUME_SECONDS = 60  # expected until a preempted task trains again once it has GPUs: base, rows and checkpoint are loaded


@dataclass(frozen=True)
class TenantDues:
    """The tenants' shares, and the fleet's GPUs by type."""

    shares: Sequence[Share]
    capacity: Mapping[str, int]

    @property
    def owed(self) -> tuple[tuple[str, float], ...]:
        """As `SchedulingProblem.dues`."""
        if sum(share.active for share in self.shares) < 2:
            return ()
        return tuple(owed(self.shares, total(self.capacity, worth(self.capacity))).items())


def with_preemption(
    problem: SchedulingProblem,
    session: Session,
    now: datetime,
    work: Workload,
    live: Sequence[LiveTask],
    waited: Mapping[str, float],
    tasks: Iterable[Task],
    tenants: TenantDues,
) -> SchedulingProblem:
    """The problem in which running tasks may be preempted for shorter ones. `tasks` are the queued ones, `waited` their seconds
    in the queue."""
    able, queued = _able(live, work), {task.id: task for task in tasks}
    spent = _spent(session, now, {*able, *(task.id for task in queued.values() if task.requeue_reason is not None)})
    asks = [_ask(one.task, one.alone, spent[id][0]) for id, one in able.items()]
    asks += [_ask(queued[one.id], one.shortest or 1, waited[one.id]) for one in problem.queued]
    weights = comparable_weights(asks, tenants.shares, tenants.capacity)

    def costed(run: RunningExecutor) -> RunningExecutor:
        if run.id not in able:
            return run
        (before, ran), due = spent[run.id], work.specs[run.id].deadline
        deadline = None if due is None else round((due - now).total_seconds())
        age = round(before + ran)
        return replace(run, preemptible=Preemptible(weights[run.id], age, round(ran), RESUME_SECONDS, deadline))

    running = tuple(costed(run) for run in problem.running)
    waiting = tuple(
        replace(one, ran=round(spent[one.id][1]) if one.id in spent else 0, preempts=weights[one.id]) for one in problem.queued
    )
    return replace(problem, running=running, queued=waiting, leave=LEAVING_SECONDS, dues=tenants.owed)


def _able(live: Sequence[LiveTask], work: Workload) -> dict[str, LiveTask]:
    there = Counter(executor_of(one.placed) for one in live)
    return {
        one.task.id: one
        for one in live
        if there[executor_of(one.placed)] == 1
        and one.placed.leaving is None
        and one.task.id in work.specs
        and one.task.batch_id is None
    }


def _ask(task: Task, seconds: float, waited: float) -> Ask:
    return Ask(task.id, task.tenant_id, task.gpus, seconds, task.priority, waited)


def _spent(session: Session, now: datetime, ids: Collection[str]) -> dict[str, tuple[float, float]]:
    """Seconds that each of these tasks has waited for its placements, and been on nodes."""
    if not ids:
        return {}
    there = extract("epoch", func.coalesce(Placement.ended_at, now) - Placement.created_at)
    sums = select(Placement.task_id, func.sum(Placement.waited_seconds), func.sum(there))
    rows = session.execute(sums.where(Placement.task_id.in_(ids)).group_by(Placement.task_id))
    return {id: (float(waited or 0), max(0.0, float(ran or 0))) for id, waited, ran in rows}
