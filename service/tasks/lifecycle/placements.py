"""Placements: lookup under the task's lock, and ending them. Lock order everywhere: task, placement, node; several of a kind by
their ids."""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL, RequeueReason, TaskStatus
from service.database.engine import after_commit, clock
from service.dependencies import Dependencies
from service.fleet.models import NODE_LOCK, Node, Placement
from service.messaging.plan_requests import request_plan
from service.messaging.wakeups import NodeWakeups
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.rewind import rewind
from service.tasks.lifecycle.task_trace import placement_ended
from service.tasks.models import Task
from service.tasks.plan_status.plan_history import note

log = logging.getLogger(__name__)

FINISHED = "finished"  # end reason of a placement whose task ended there


def touch_nodes(session: Session, wakeups: NodeWakeups, *node_ids: str) -> None:
    """Raise the nodes' desired versions, and wake the nodes after the commit. The caller of several holds their locks."""

    def wake() -> None:
        for node_id in node_ids:
            wakeups.desired_changed(node_id)

    session.execute(update(Node).where(Node.id.in_(node_ids)).values(desired_version=Node.desired_version + 1))
    after_commit(session, wake)


def live_placement(session: Session, task_id: str) -> Placement | None:
    """The task's live placement, locked; at most one exists. The caller holds the task's row lock."""
    return next(iter(live_placements(session, [task_id])), None)


def live_placements(session: Session, task_ids: Collection[str]) -> Sequence[Placement]:
    """The live placements of these tasks, locked. The caller holds the tasks' row locks."""
    found = select(Placement).where(Placement.task_id.in_(task_ids), Placement.ended_at.is_(None)).order_by(Placement.id)
    return session.scalars(found.with_for_update().execution_options(populate_existing=True)).all()


def lock_placement(session: Session, placement_id: str) -> tuple[Task, Placement] | None:
    """A placement and its task, both locked, live or not; None if there is no such placement."""
    task_id = session.scalar(select(Placement.task_id).where(Placement.id == placement_id))
    if task_id is None:
        return None
    fresh = {"populate_existing": True}
    task = session.scalars(select(Task).where(Task.id == task_id).with_for_update().execution_options(**fresh)).one()
    own = select(Placement).where(Placement.id == placement_id).with_for_update().execution_options(**fresh)
    return task, session.scalars(own).one()


def lock_staying(session: Session, placement_id: str) -> tuple[Task, Placement] | None:
    """As `lock_placement`; None also where the placement has ended or was asked to leave."""
    locked = lock_placement(session, placement_id)
    if locked is None or locked[1].ended_at is not None or locked[1].leaving is not None:
        return None
    return locked


def end_placement(session: Session, wakeups: NodeWakeups, placement: Placement, reason: str) -> None:
    """End a live placement; its row stores the `reason`. The caller holds the task's row lock."""
    _mark_ended(session, placement, reason, clock(session))
    touch_nodes(session, wakeups, placement.node_id)


def end_placements(session: Session, wakeups: NodeWakeups, placements: Collection[Placement], reason: str) -> None:
    """As `end_placement` on each. The caller holds the locks of all of them and of their tasks, since none may be taken once a
    node is locked."""
    now = clock(session)
    for placement in placements:
        _mark_ended(session, placement, reason, now)
    node_ids = sorted({placement.node_id for placement in placements})
    if node_ids:
        session.execute(select(Node.id).where(Node.id.in_(node_ids)).order_by(Node.id).with_for_update(**NODE_LOCK))
        touch_nodes(session, wakeups, *node_ids)


def _mark_ended(session: Session, placement: Placement, reason: str, now: datetime) -> None:
    placement.ended_at = now
    placement.end_reason = reason
    placement_ended(session, placement, now)


def ask_to_leave(
    session: Session,
    dependencies: Dependencies,
    task: Task,
    placement: Placement,
    reason: RequeueReason,
    detail: str,
    then: TaskStatus = TaskStatus.QUEUED,
) -> None:
    """Ask a live placement to save its jobs and leave; then its task becomes `then`. The rest of its lease is its grace period.

    A placement that no node has acknowledged has nothing to save, and ends at once. The caller holds the locks of
    `lock_placement`.
    """
    task.desired_status = then
    placement.leaving, placement.leave_detail = reason, detail
    if placement.acknowledged_at is None:
        release_placement(session, dependencies, task, placement, reason, detail)
    else:
        touch_nodes(session, dependencies.wakeups, placement.node_id)
        bump_version_and_notify(session, task)


def release_placement(
    session: Session,
    dependencies: Dependencies,
    task: Task,
    placement: Placement,
    reason: RequeueReason,
    detail: str = "",
    hopeless: str | None = None,
) -> None:
    """Take a running task off its node, in one transaction: fence, placement, jobs, curves, queue, plan request. With
    `hopeless`, the task fails for that reason (see `rewind`).

    A placement that was asked to leave ends for that reason. One whose task cannot be rewound ends all the same, so that its
    devices are free and its node's other placements are released; the reconciler rewinds the task as soon as that is possible.
    The caller holds the locks of `lock_placement` and has checked that the placement is live.
    """
    if placement.leaving is not None:
        reason, detail = RequeueReason(placement.leaving), placement.leave_detail or ""
    end_placement(session, dependencies.wakeups, placement, reason)  # locked before the usage counter, as everywhere
    try:
        with session.begin_nested():
            rewind(session, task, reason, detail, hopeless)
    except ValueError as error:  # a status of a newer version, say
        log.error("task %s has left node %s and cannot be rewound: %s", task.id, placement.node_id, error, exc_info=True)
        task.requeue_reason, task.requeue_detail = reason, f"it cannot go on: {error}"
    note(session, task, "left", {"reason": reason, "detail": detail or None, "status": task.status})
    bump_version_and_notify(session, task)
    request_plan(session, dependencies.queue, "task_ended" if task.status in TASK_TERMINAL else reason)
