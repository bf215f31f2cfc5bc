"""Relieves executors on which a bound of slowdown is broken, as its worker measured: the youngest joiner is asked to leave."""

import logging

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from contract.states import RequeueReason
from service.dependencies import Dependencies
from service.fleet.models import Placement
from service.fleet.reports import BROKEN_AT
from service.scheduler.core.joins.slowdowns import MOST_CORRECTION, correction_by
from service.scheduler.core.problem import RunningExecutor
from service.scheduler.explain.join_sentences import makes_room
from service.scheduler.state import planner_lease
from service.scheduler.state.snapshot import Snapshot
from service.tasks.lifecycle.placements import ask_to_leave, lock_staying
from service.tasks.models import Task

log = logging.getLogger(__name__)


def relieve(dependencies: Dependencies, token: str, seen: Snapshot) -> bool:
    """Ask the youngest of each crowded executor to leave, of those that this version can read, unless somebody leaves it
    already. Returns whether any was asked. Raises LeaseLost."""
    asked, runs = False, {run.id: run for run in seen.problem.running}
    for there in seen.executors.values():
        able = [placed for placed in there if placed.task_id in seen.placements]
        if able and len(there) > 1 and all(placed.leaving is None for placed in there):
            slowest = max(there, key=_over)
            if _over(slowest) > BROKEN_AT:
                why = makes_room(
                    slowest.current_slowdown or 1.0, slowest.max_slowdown or 1.0, seen.nodes[slowest.node_id].device_type
                )
                asked |= _ask(dependencies, token, there, able[-1], why, _correction(runs[there[0].task_id], slowest))
    return asked


def _correction(run: RunningExecutor, slowest: Placement) -> float:
    """With which the slowest one's predicted slowdown is the measured one: those who stay are not joined by as many again."""
    if all(member.id != slowest.task_id for member in run.members):  # its executor is not one to join, so nothing is predicted
        return max(run.correction, min(MOST_CORRECTION, slowest.current_slowdown or 1.0))
    return max(run.correction, correction_by(run.members, run.gpus, slowest.task_id, slowest.current_slowdown or 1.0))


def _over(placed: Placement) -> float:
    """Its measured slowdown over its bound."""
    if placed.current_slowdown is None or placed.max_slowdown is None:
        return 0.0
    return placed.current_slowdown / placed.max_slowdown


def _ask(
    dependencies: Dependencies, token: str, there: list[Placement], youngest: Placement, why: str, correction: float
) -> bool:
    with dependencies.db.begin() as session:
        planner_lease.hold_lease(session, token)
        _lock_all(session, there, youngest)
        locked = lock_staying(session, youngest.id)
        if locked is None:
            return False
        task, placement = locked
        staying = update(Placement).where(Placement.id.in_([one.id for one in there if one is not youngest]))
        session.execute(staying.values(correction=correction, slowdown=None))  # also of workers that do not tell beside whom
        log.info("task %s leaves its executor: %s", task.id, why)
        ask_to_leave(session, dependencies, task, placement, RequeueReason.PREEMPTED, why)
        return True


def _lock_all(session: Session, there: list[Placement], youngest: Placement) -> None:
    """The youngest's task first, as everywhere, and then all placements by their ids, as a heartbeat locks them."""
    session.execute(select(Task.id).where(Task.id == youngest.task_id).with_for_update())
    ids = [one.id for one in there]
    session.execute(select(Placement.id).where(Placement.id.in_(ids)).order_by(Placement.id).with_for_update())
