"""Placements that their nodes cannot be told of, since what they would go on from cannot be read: a matter of their tasks."""

import logging

from sqlalchemy.orm import Session

from contract.states import RequeueReason, TaskStatus
from service.dependencies import Dependencies
from service.fleet.desired_state import why_untold
from service.fleet.models import Placement
from service.fleet.node_health.quarantine import release_lost
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import paused_unreadable
from service.tasks.stored_results import ResultUnreadable

log = logging.getLogger(__name__)


def leave_untold(session: Session, dependencies: Dependencies, task: Task, placement: Placement) -> bool:
    """Release a placement that its node could not be told of; False where it could. It counts against neither. Its task is
    paused where a stored result is damaged, or it would hold GPUs in vain again; one whose spec only another version can read
    waits for that. The caller holds the locks of `lock_placement`."""
    why = why_untold(session, dependencies.settings, placement, task)
    if why is None:
        return False
    log.error("task %s: no node can be told of it: %s", task.id, why)
    damaged = isinstance(why, ResultUnreadable) and placement.leaving is None
    if damaged:
        task.desired_status = TaskStatus.PAUSED
    release_lost(session, dependencies, task, placement, RequeueReason.NODE_LOST, f"no node can be told of it: {why}", None)
    if damaged and task.status == TaskStatus.PAUSED:
        task.waiting = paused_unreadable(str(why))
    return True
