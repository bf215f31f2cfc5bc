"""Placements that their nodes cannot be told of, since what they would go on from cannot be read: a matter of their tasks."""

import logging

from sqlalchemy.orm import Session

from contract.compatibility.lenient_documents import why_unreadable
from contract.states import RequeueReason, TaskStatus
from service.dependencies import Dependencies
from service.fleet.desired_state import why_untold
from service.fleet.models import Placement
from service.fleet.node_health.quarantine import release_lost
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import paused_unreadable
from service.tasks.stored_specs import SpecUnreadable

log = logging.getLogger(__name__)


def leave_untold(session: Session, dependencies: Dependencies, task: Task, placement: Placement) -> bool:
    """Release a placement that its node could not be told of; False where it could. It counts against neither. Its task is
    paused, or it would hold GPUs in vain again; one whose spec cannot be read is planned no more until it can.
    The caller holds the locks of `lock_placement`."""
    why = why_untold(session, dependencies.settings, placement, task)
    if why is None:
        return False
    words = why_unreadable(why)
    log.error("task %s: no node can be told of it: %s", task.id, words)
    damaged = not isinstance(why, SpecUnreadable) and placement.leaving is None
    if damaged:
        task.desired_status = TaskStatus.PAUSED
    release_lost(session, dependencies, task, placement, RequeueReason.NODE_LOST, f"no node can be told of it: {words}", None)
    if damaged and task.status == TaskStatus.PAUSED:
        task.waiting = paused_unreadable(words)
    elif damaged:  # a task that could not be rewound is queued once that is repaired
        task.desired_status = None
    return True
