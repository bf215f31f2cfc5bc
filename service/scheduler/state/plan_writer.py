"""Writes what a plan says as rows: reasons, history, ends, the plan itself. Skips each task that changed since it was read."""

import logging
from dataclasses import asdict
from datetime import timedelta

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import Session

from service.database.engine import clock, new_id
from service.fleet.models import Placement
from service.scheduler.core.decision import Decision
from service.scheduler.core.problem_json import problem_to_json
from service.scheduler.explain import plan_news
from service.scheduler.models import Plan, PlanRequest
from service.scheduler.state.batch_rows import note_plans
from service.scheduler.state.placement_writer import Placed, planned_ends, unchanged
from service.scheduler.state.plan_announcements import reasons_of
from service.scheduler.state.snapshot import Snapshot
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.plan_status import queue_status
from service.tasks.plan_status.plan_history import note

log = logging.getLogger(__name__)

_SAME_END = 0.05  # part of the remaining time by which a running task's expected end must move to be written


def announce_plan(session: Session, seen: Snapshot, decision: Decision, placed: Placed, seconds: float) -> None:
    """Write the reasons of the waiting tasks, notify news, store the plan, and delete the requests it answers.

    The caller's transaction holds the planner's lease.
    """
    between = seen.between(decision.starts)
    said = reasons_of(seen, decision, between)
    before = {id: seen.tasks[id].waiting or None for id in said}  # one that cannot be read is written anew
    found = plan_news.choose(before, said, seen.at, plan_news.budget(_since_last(session)))
    queue_status.publish(session, seen.at, seen.tasks, said, found.deferred)
    if found.notified:
        with session.no_autoflush:
            same = unchanged(session, seen, found.notified)
            for task in same:
                task.waiting = found.notified[task.id]
                note(session, task, "waits", found.notified[task.id])
            bump_version_and_notify(session, *same)
    session.execute(delete(PlanRequest).where(PlanRequest.id.in_(seen.requests)))
    note_plans(session, seen.at, decision.batches)
    if seen.problem.queued or seen.reserved:
        session.add(_plan(session, seen, decision, seconds, placed))
        waits = len(seen.problem.queued) + len(seen.reserved) - len(placed.started)
        joins = sum(join.task in placed.started for join in decision.joins)
        log.info("plan by %s: %d start, %d of them beside others, %d wait", decision.method, len(placed.started), joins, waits)
        if decision.note:
            level = logging.INFO if decision.status in ("OPTIMAL", "FEASIBLE") else logging.WARNING
            log.log(level, "plan by %s after %s: %s", decision.method, decision.status, decision.note)


def _since_last(session: Session) -> float | None:
    """Seconds since the newest stored plan."""
    newest = session.scalar(select(Plan.created_at).order_by(Plan.id.desc()).limit(1))
    return None if newest is None else (clock(session) - newest).total_seconds()


def note_ends(session: Session, seen: Snapshot, decision: Decision) -> None:
    """Update the expected ends of running tasks where they have moved, by themselves or by who joins them, and how many others
    are there."""
    ends = planned_ends(seen, decision)
    between = seen.between(ends=ends)
    moved = []
    for run in seen.each_running(ends):
        placed = seen.placements.get(run.id) or seen.left_alone.get(run.id)
        if placed is None or placed.leaving is not None:
            continue
        end, others = seen.at + timedelta(seconds=run.remaining), ends[run.id].others if run.id in ends else 0
        same = placed.expected_end is not None and abs((end - placed.expected_end).total_seconds()) <= _SAME_END * run.remaining
        if not same or placed.beside != others:
            low, high = (seen.at + timedelta(seconds=s) for s in between[run.id].end)
            moved.append({"of": placed.id, "end": end, "low": low, "high": high, "others": others})
    if not moved:
        return
    ids = [one["of"] for one in moved]
    free = select(Placement.id).where(Placement.id.in_(ids), Placement.ended_at.is_(None)).order_by(Placement.id)
    mine = set(session.scalars(free.with_for_update(skip_locked=True)))  # those with a report in flight follow later
    said = [one for one in moved if one["of"] in mine]
    if said:
        session.connection().execute(_SAY_END, said)


_SAY_END = (
    update(Placement.__table__)  # type: ignore[arg-type]
    .where(Placement.id == bindparam("of"))
    .values(expected_end=bindparam("end"), expected_low=bindparam("low"), expected_high=bindparam("high"))
    .values(beside=bindparam("others"))
)


def _plan(session: Session, seen: Snapshot, decision: Decision, seconds: float, placed: Placed) -> Plan:
    late = [asdict(miss) for miss in decision.late]
    decided = {"held": decision.held, "solved": decision.solved, "joins": [asdict(join) for join in decision.joins]}
    decided |= {"preemptions": [asdict(made) for made in decision.preemptions]}
    return Plan(
        id=new_id("plan"),
        requests=len(seen.requests),
        method=decision.method,
        solver_status=decision.status,
        objective=float(decision.objective),
        bound=decision.bound,
        seconds=seconds,
        latency_seconds=(clock(session) - seen.oldest).total_seconds() if seen.oldest is not None else None,
        problem=problem_to_json(seen.problem),
        decision={"starts": [asdict(start) for start in decision.starts], "late": late, **decided, **asdict(placed)},
        note=decision.note,
    )
