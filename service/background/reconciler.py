"""The reconciler: on a timer it finds and repairs what a lost wake-up, a dead node or a crash left behind.

Needs no Redis. Each step uses short transactions of its own and is safe beside every other process.
"""

import logging
import pkgutil
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import ColumnElement, DateTime, case, func, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL, RequeueReason, TaskStatus
from service.autoscaling.webhook import AutoscalingWebhook
from service.background.liveness import show_alive
from service.background.retention import forget_surplus_plans
from service.background.separate_steps import alone
from service.background.stopping import stop_all
from service.background.untold_placements import leave_untold
from service.completions.session_starts import start_for_who_asks
from service.database.engine import clock
from service.dependencies import Dependencies
from service.files.imports.importer import Importer
from service.fleet.answer_sessions import end_over
from service.fleet.base_models.copies.base_copier import BaseCopier
from service.fleet.merges.merge_leases import end_expired_merges
from service.fleet.models import NODE_LOCK, Node, Placement
from service.fleet.node_health.quarantine import ExecutorLoss, read_faults, release_lost
from service.fleet.nodes import lose
from service.graders.endpoint_graders import box_of, outbound_of
from service.graders.grader_courier import GraderCourier
from service.hub_pushes.push_courier import HubPushCourier
from service.merges.merge_starts import start_due_merges
from service.messaging.plan_requests import request_plan
from service.messaging.queue import QueueJob
from service.mirrors.mirror_courier import MirrorCourier
from service.scheduler.explain.reason_codes import Code
from service.scheduler.models import Plan, PlanRequest, QueueStatus
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.graded_scores import finish
from service.tasks.lifecycle.placements import FINISHED, end_placement, live_placement, lock_placement
from service.tasks.lifecycle.rewind import rewind
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import NOT_BEFORE, ROW_UNREADABLE
from service.tasks.stored_specs import understood
from service.tasks.submission.validator import Validator
from service.tracing import span_exporter
from service.webhooks.factories import courier_of

log = logging.getLogger(__name__)

_REPLAN = "service.scheduler.planner:replan"  # by name, since it is rarely called for and loads the solver
# of the first placement of an executor, or that a node never took up, and of those beside it
_LOSSES = {False: (ExecutorLoss.EXECUTOR, ExecutorLoss.BESIDE), True: (ExecutorLoss.UNTAKEN, ExecutorLoss.UNTAKEN_BESIDE)}
_SWEEP_SECONDS = 600.0
_OUTLASTED = timedelta(seconds=15)
_MOMENT = r"^\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d(\.\d+)?[+-]\d\d:\d\d$"  # as rows hold them
_LOOKED_AT = timedelta(seconds=30)
_LATELY = timedelta(minutes=10)


def run(settings: Settings) -> None:
    """Reconcile every `settings.reconcile_seconds` until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    span_exporter.start(settings, "motet-reconcile")
    dependencies = Dependencies.of(settings)
    database = dependencies.db
    courier = courier_of(settings, database)
    in_threads = (  # as the courier: in threads of their own, since those that they call may be slow
        Validator(dependencies, missed_after=settings.reconcile_seconds),
        Importer(dependencies),
        BaseCopier(database, dependencies.storage, settings),
        grader_courier_of(dependencies),
        MirrorCourier.of(settings, database),
        AutoscalingWebhook(settings, database),
        HubPushCourier(dependencies),
    )
    swept = time.monotonic()
    while not stop.wait(settings.reconcile_seconds):
        show_alive(settings)
        once(dependencies)
        for work in (courier, *in_threads):
            work.wake()
        if time.monotonic() - swept > _SWEEP_SECONDS:
            dependencies.queue.wake(QueueJob.SWEEP)
            swept = time.monotonic()
    stop_all((courier, *in_threads))
    span_exporter.stop()


def grader_courier_of(dependencies: Dependencies) -> GraderCourier:
    """The courier of endpoint graders, which gives their scores to the evaluations of tasks."""
    settings = dependencies.settings
    outbound, box = outbound_of(settings), box_of(settings)
    return GraderCourier(dependencies.db, outbound, box, settings.grader_seconds, partial(finish, dependencies.db))


def once(dependencies: Dependencies) -> None:
    """Run all steps once. A step that fails is logged and runs again next time; the others continue."""
    for step in STEPS:
        with alone(step.__name__):
            step(dependencies)


def give_up_silent_nodes(dependencies: Dependencies) -> None:
    """Mark nodes without a heartbeat for a lease's length as lost, and end their placements. No loss is counted against those
    whose worker had said that it stops."""
    with dependencies.db.begin() as session:
        since = clock(session) - timedelta(seconds=dependencies.settings.lease_seconds)
        silent = select(Node).where(Node.status == "ready", Node.heartbeat_at < since)
        for node in session.scalars(silent.with_for_update(skip_locked=True, **NODE_LOCK)):
            why = "lost" if node.stopping_since is None else "away, as its worker said"
            log.warning("node %s is %s: no heartbeat since %s", node.name, why, node.heartbeat_at)
            node.status = "lost"
            request_plan(session, dependencies.queue, "node_lost")
    with dependencies.db.begin() as session:
        on_lost = select(Placement.id, Node.name, Node.stopping_since).join(Node, Node.id == Placement.node_id)
        left = session.execute(on_lost.where(Placement.ended_at.is_(None), Node.status == "lost").order_by(Node.name)).all()
    counted = ""
    for placement_id, name, stopping in left:
        loss = None if stopping or name == counted else ExecutorLoss.NODE
        with alone(f"the release of placement {placement_id} of lost node {name}"):
            if lose(dependencies, placement_id, RequeueReason.NODE_LOST, f"node {name} was lost", loss):
                counted = name  # a silent node counts as one loss, however many placements it had


def end_expired_leases(dependencies: Dependencies) -> None:
    """Release placements whose lease expired: the node never acknowledged them, or their executor stopped renewing. An executor
    counts as one loss, and so does all that a node never took up. Silent nodes are left to `give_up_silent_nodes`."""
    losses = dict[tuple[str, tuple[int, ...] | None], ExecutorLoss]()  # by node and devices; None: what it never took up
    for placement_id in _expired(dependencies):
        with alone(f"the release of placement {placement_id}, whose lease expired,"), dependencies.db.begin() as session:
            found = lock_placement(session, placement_id)
            if found is None:
                continue
            task, placement = found
            silent = placement.acknowledged_at is None
            first, beside = _LOSSES[silent]
            reason = RequeueReason.NODE_LOST if silent else RequeueReason.EXECUTOR_LOST
            one = placement.node_id, None if silent else tuple(sorted(placement.device_indexes))
            if placement.ended_at is None and placement.lease_until < clock(session):
                detail = "the node never took the placement up" if silent else "the executor's lease ran out"
                log.warning("task %s leaves node %s: %s", task.id, placement.node_id, detail)
                if silent and leave_untold(session, dependencies, task, placement):
                    continue
                loss = losses.get(one, first)
                losses[one] = release_lost(session, dependencies, task, placement, reason, detail, loss) or loss
            elif placement.leaving is None and placement.end_reason == reason:
                losses.setdefault(one, beside)  # another reconciler has counted it


def _expired(dependencies: Dependencies) -> list[str]:
    """Placements whose lease expired on nodes whose heartbeats come, those that were taken up first. A silent node would be
    counted once for each of its executors, and each of its tasks as if it had crashed its own."""
    with dependencies.db.begin() as session:
        now = clock(session)  # one moment for all: what a heartbeat renewed expires as the heartbeat itself is a lease old
        heard = Node.status == "ready", Node.heartbeat_at >= now - timedelta(seconds=dependencies.settings.lease_seconds)
        expired = select(Placement.id).join(Node, Node.id == Placement.node_id)
        expired = expired.where(Placement.ended_at.is_(None), Placement.lease_until < now, *heard)
        return list(session.scalars(expired.order_by(Node.id, Placement.acknowledged_at.is_(None), Placement.id)))


def requeue_running_without_placement(dependencies: Dependencies) -> None:
    """Requeue tasks that are running without a live placement."""
    live = select(Placement.task_id).where(Placement.ended_at.is_(None))  # read once, not for each task
    with dependencies.db.begin() as session:
        ids = list(session.scalars(select(Task.id).where(Task.status == TaskStatus.RUNNING, Task.id.not_in(live))))
    for task_id in ids:
        with alone(f"the rewind of task {task_id}"), dependencies.db.begin() as session:
            task = session.scalars(select(Task).where(Task.id == task_id).with_for_update()).one()
            if task.status == TaskStatus.RUNNING and live_placement(session, task_id) is None:
                log.error("task %s was running without a placement", task_id)
                rewind(session, task, RequeueReason.EXECUTOR_LOST)
                bump_version_and_notify(session, task)
                request_plan(session, dependencies.queue, "placement_missing")


def end_placements_of_ended_tasks(dependencies: Dependencies) -> None:
    """End placements whose task is not running."""
    with dependencies.db.begin() as session:
        stray = select(Placement.id).join(Task, Task.id == Placement.task_id)
        ids = list(session.scalars(stray.where(Placement.ended_at.is_(None), Task.status != TaskStatus.RUNNING)))
    for placement_id in ids:
        with alone(f"the end of placement {placement_id}"), dependencies.db.begin() as session:
            found = lock_placement(session, placement_id)
            if found is not None and found[1].ended_at is None and found[0].status != TaskStatus.RUNNING:
                task, placement = found
                log.error("placement %s outlived its task, which is %s", placement_id, task.status)
                end_placement(session, dependencies.wakeups, placement, FINISHED if task.status in TASK_TERMINAL else "stray")
                bump_version_and_notify(session, task)


def replan_missed_requests(dependencies: Dependencies) -> None:
    """Plan if a plan request has waited for longer than the reconciler's interval."""
    with dependencies.db.begin() as session:
        since = clock(session) - timedelta(seconds=dependencies.settings.reconcile_seconds)
        overdue = session.scalar(select(func.count()).where(PlanRequest.created_at < since))
    if overdue:
        pkgutil.resolve_name(_REPLAN)(dependencies)


def replan_elapsed_delays(dependencies: Dependencies) -> None:
    """Request a plan when time alone calls for one: a task may start now, a rest from a node ended, a placement outlasted its
    expected end, a tenant's wait passed its bound, or the last plan delayed notifications."""
    with dependencies.db.begin() as session:
        now, start = clock(session), Task.waiting["expected_start"].astext
        released = select(Task.id).where(
            Task.status == TaskStatus.QUEUED,
            Task.waiting["code"].astext == NOT_BEFORE,
            case((start.op("~")(_MOMENT), sql_cast(start, DateTime(timezone=True)))) <= now,
        )
        outlasted = select(Placement.id).where(Placement.ended_at.is_(None), Placement.expected_end < now - _OUTLASTED)
        waits = select(Task.id).where(Task.status == TaskStatus.QUEUED)
        if session.scalar(select(released.exists())):
            request_plan(session, dependencies.queue, "task_released")
        elif session.scalar(select(_rest_over(now, now - _LATELY) & waits.exists())):
            request_plan(session, dependencies.queue, "rest_over")
        elif session.scalar(select(outlasted.exists() & waits.exists())):
            request_plan(session, dependencies.queue, "end_outlasted")
        elif _bound_passed(session, dependencies.settings, now):
            request_plan(session, dependencies.queue, "bound_passed")
        elif _news_deferred(session, dependencies.settings, now):
            request_plan(session, dependencies.queue, "news_put_off")


def _rest_over(now: datetime, since: datetime) -> ColumnElement[bool]:
    """Whether a node's quarantine or a task's retry delay ended after `since` and after the last plan."""
    planned = func.greatest(select(func.max(Plan.created_at)).scalar_subquery(), since)
    node = select(Node.id).where(Node.status == "ready", Node.rests_until <= now, Node.rests_until > planned)
    task = select(Task.id).where(Task.status == TaskStatus.QUEUED, Task.retry_at <= now, Task.retry_at > planned)
    return node.exists() | task.exists()


def replan_newly_readable_tasks(dependencies: Dependencies) -> None:
    """Request a plan for tasks that an older planner could not read and this version can, or whose row was repaired: the older
    planner consumed the request that came with them."""
    with dependencies.db.begin() as session:
        left_out = Task.waiting["code"].astext.in_([Code.WAITING_FOR_VERSION, ROW_UNREADABLE])
        left = select(Task).where(Task.status == TaskStatus.QUEUED, left_out)
        if any(understood(task) and read_faults(task) is not None for task in session.scalars(left.order_by(Task.id))):
            request_plan(session, dependencies.queue, "version_came")


def _bound_passed(session: Session, settings: Settings, now: datetime) -> bool:
    """Whether a task has waited past `preempt_after_seconds`, several tenants have open tasks, and no plan was made lately."""
    long_ago = now - timedelta(seconds=settings.preempt_after_seconds)
    overdue = select(Task.id).where(Task.status == TaskStatus.QUEUED, Task.queued_at < long_ago)
    tenants = select(func.count(Task.tenant_id.distinct())).where(Task.status.in_([TaskStatus.QUEUED, TaskStatus.RUNNING]))
    lately = select(Plan.id).where(Plan.created_at > now - _LOOKED_AT)
    return bool(session.scalar(select(overdue.exists() & (tenants.scalar_subquery() > 1) & ~lately.exists())))


def _news_deferred(session: Session, settings: Settings, now: datetime) -> bool:
    """Whether the newest plan had more notifications than its limit, and no plan was made since."""
    untold = select(QueueStatus.tenant_id).where(QueueStatus.untold > 0)
    lately = select(Plan.id).where(Plan.created_at > now - timedelta(seconds=settings.reconcile_seconds))
    return bool(session.scalar(select(untold.exists() & ~lately.exists())))


def forget_old_plans(dependencies: Dependencies) -> None:
    """Delete all but the newest `plans_kept` plans."""
    forget_surplus_plans(dependencies.db, dependencies.settings.plans_kept)


def start_missed_sessions(dependencies: Dependencies) -> None:
    """Start executors for who asks: a wake-up was lost, or a device has become free."""
    start_for_who_asks(dependencies)


STEPS: tuple[Callable[[Dependencies], None], ...] = (
    give_up_silent_nodes,
    end_expired_leases,
    requeue_running_without_placement,
    end_placements_of_ended_tasks,
    replan_elapsed_delays,
    replan_newly_readable_tasks,
    replan_missed_requests,
    end_over,
    start_missed_sessions,
    end_expired_merges,
    start_due_merges,
    forget_old_plans,
)
