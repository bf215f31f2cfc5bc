"""The planner loop: while plan requests exist, read a snapshot, solve, write. A leased row with a token admits one planner.

Postgres has the last word: a plan is written only under the token, and each task only if its status and fence are as they were
read. Starts are committed before the reasons of the waiting tasks. Wake-ups go out after the commit, and may be lost.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from service.dependencies import Dependencies
from service.messaging.queue import QueueJob
from service.scheduler.core.solve import solve
from service.scheduler.pending_requests import plan_causes
from service.scheduler.replan_pacing import Pace
from service.scheduler.state import planner_lease, snapshot
from service.scheduler.state.crowding import relieve
from service.scheduler.state.placement_writer import Placed, place, starting
from service.scheduler.state.plan_writer import announce_plan, note_ends
from service.scheduler.state.planner_lease import LeaseLost
from service.scheduler.state.preemption.gpu_reservations import GpuReservation
from service.scheduler.state.preemption.reclaim import reclaim
from service.scheduler.state.preemption.shorter_first import preempt_for_shorter
from service.scheduler.state.snapshot import Snapshot
from service.tasks.lifecycle.task_trace import planned

_MOST_RECLAIMS = 8  # per plan

log = logging.getLogger(__name__)


class Outcome(Enum):
    """Outcome of a planning round: no request, nothing moves, or something starts or is reclaimed."""

    NONE = 0
    SAME = 1
    MOVED = 2


def replan(dependencies: Dependencies, pace: Pace | None = None) -> int:
    """Plan until no request is left, another planner holds the lease, or no plan is due by `pace` (None: always due). Returns
    the number of plans.

    If the lease is taken, returns: its holder checks for requests once more after releasing it. A deferred plan schedules a
    wake-up for when it is due; the reconciler replans if the wake-up is lost.
    """
    pace, hurried, made = pace or Pace(), pace is None, 0
    while (hurried or _due(dependencies, pace)) and (token := planner_lease.acquire_lease(dependencies.db)) is not None:
        try:
            pace.begin()
            outcome = plan_once(dependencies, token)
            pace.end(outcome is Outcome.MOVED)
            made += outcome is not Outcome.NONE
        except LeaseLost:
            log.warning("another planner took over; the plan in hand is dropped")
            return made
        finally:
            planner_lease.release_lease(dependencies.db, token)
    return made


def _due(dependencies: Dependencies, pace: Pace) -> bool:
    with dependencies.db.begin() as session:
        seconds = pace.wait(plan_causes(session))
    if seconds > 0:
        dependencies.queue.wake_later(QueueJob.REPLAN, seconds)
    return seconds == 0


def plan_once(dependencies: Dependencies, token: str) -> Outcome:
    """Answer all present requests with one plan. Raises LeaseLost.

    If a planner dies between `place` and `announce_plan`, its requests remain: the next plan finds the placements and writes
    the reasons.
    """
    seen = _look(dependencies)
    if not seen.requests:
        return Outcome.NONE
    for name, why in seen.unreadable.items():
        log.error("node %s is left out of the plan: %s", name, why)
    for id, why in seen.damaged.items():
        log.error("task %s is left out of the plan: %s", id, why)
    reserved: list[GpuReservation] = []
    while len(reserved) < _MOST_RECLAIMS and (reservation := reclaim(dependencies, token, seen)) is not None:
        reserved.append(reservation)
        seen = _look(dependencies, reserved)
    if relieve(dependencies, token, seen):
        seen = _look(dependencies, reserved)
    began, began_at = time.perf_counter(), time.time()
    decision = solve(seen.problem)
    if made := preempt_for_shorter(dependencies, token, seen, decision):
        reserved += made.values()
        seen = _look(dependencies, reserved)
        decision = replace(solve(seen.problem), preemptions=tuple(made))
    seconds = time.perf_counter() - began
    placed = Placed()
    if starting(seen, decision) or decision.joins:
        with dependencies.db.begin() as session:
            planner_lease.hold_lease(session, token)
            placed = place(session, dependencies, seen, decision)
            left = len(seen.problem.queued) + len(seen.reserved) - len(placed.started)
            planned(session, (seen.tasks[id] for id in placed.started), began_at, time.time(), decision.method, left)
    with dependencies.db.begin() as session:
        planner_lease.hold_lease(session, token)
        announce_plan(session, seen, decision, placed, seconds)
        note_ends(session, seen, decision)
    return Outcome.MOVED if reserved or placed.started or placed.dropped else Outcome.SAME


def _look(dependencies: Dependencies, reserved: Sequence[GpuReservation] = ()) -> Snapshot:
    with dependencies.db.begin() as session:
        return snapshot.read(session, dependencies, reserved)
