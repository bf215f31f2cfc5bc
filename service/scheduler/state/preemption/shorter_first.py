"""Asks running tasks to leave for much shorter waiting ones, as core/preemption/shortest_remaining.py decides after a plan.

Their GPUs are reserved for the preemptor, as those that fair share takes back are. Decides nothing.
"""

import logging

from contract.states import RequeueReason
from service.dependencies import Dependencies
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.explain.waiting_sentences import duration_words
from service.scheduler.state import planner_lease
from service.scheduler.state.preemption.gpu_reservations import GpuReservation
from service.scheduler.state.snapshot import Snapshot
from service.tasks.lifecycle.placements import ask_to_leave, lock_staying

Made = dict[ShortPreemption, GpuReservation]

log = logging.getLogger(__name__)


def preempt_for_shorter(dependencies: Dependencies, token: str, seen: Snapshot, decision: Decision) -> Made:
    """Ask the victims to leave, each in a transaction that checks again under its lock. Returns the preemptions that were asked
    for. Raises LeaseLost."""
    found = Made()
    for made in shorter_first(seen.problem, decision):
        asked = {victim for victim in made.victims if _ask(dependencies, token, seen, made, victim)}
        if asked:
            found[made] = GpuReservation(made.task, made.node, frozenset(asked))
    return found


def _ask(dependencies: Dependencies, token: str, seen: Snapshot, made: ShortPreemption, victim: str) -> bool:
    with dependencies.db.begin() as session:
        planner_lease.hold_lease(session, token)
        locked = lock_staying(session, seen.placements[victim].id)
        if locked is None:
            return False
        task, placement = locked
        placement.promised_to = made.task
        log.info("task %s is preempted for %s, which takes %d s", task.id, made.task, made.seconds)
        ask_to_leave(session, dependencies, task, placement, RequeueReason.PREEMPTED, notice(seen, made, victim))
        return True


def notice(seen: Snapshot, made: ShortPreemption, victim: str) -> str:
    """Message for the victim's owner; names the preempting task only if it is the owner's."""
    same = seen.tasks[made.task].tenant_id == seen.tasks[victim].tenant_id
    whom = made.task if same else "another tenant's task"
    return (
        f"Paused for {whom}, which takes {duration_words(made.seconds)} and would have waited for "
        f"{duration_words(made.sooner)} longer. It goes on from its checkpoint after that."
    )
