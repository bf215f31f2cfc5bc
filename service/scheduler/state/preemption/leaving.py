"""Asks a running task to leave its GPUs for another one, for which they are reserved."""

import logging

from contract.states import RequeueReason
from service.dependencies import Dependencies
from service.scheduler.state import planner_lease
from service.tasks.lifecycle.placements import ask_to_leave, lock_staying

log = logging.getLogger(__name__)


def leave_for(dependencies: Dependencies, token: str, placement_id: str, preemptor: str, why: str, notice: str) -> bool:
    """Ask the placement to leave, in a transaction that checks again under its task's lock; False if it has ended or leaves
    already. `why` is for the log, `notice` for its owner. Raises LeaseLost."""
    with dependencies.db.begin() as session:
        planner_lease.hold_lease(session, token)
        locked = lock_staying(session, placement_id)
        if locked is None:
            return False
        task, placement = locked
        placement.promised_to = preemptor
        log.info("task %s is preempted for %s: %s", task.id, preemptor, why)
        ask_to_leave(session, dependencies, task, placement, RequeueReason.PREEMPTED, notice)
        return True
