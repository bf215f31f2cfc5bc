"""The planner: while changes ask for a plan, look, solve, write. One planner at a time, by a leased row with a token.

Postgres alone decides: a plan is written only under the token, and each task only if its status and fence are as they were
read. Hints go out after the commit, and may be lost.
"""

import logging
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.states import TaskStatus, check_task
from service.db import Database, clock, new_id
from service.fleet.leases import lease_until
from service.fleet.models import Node, Placement
from service.fleet.placements import touch_node
from service.parts import Parts
from service.scheduler import snapshot, waiting
from service.scheduler.models import Plan, PlannerLease, PlanRequest
from service.scheduler.problem import Start
from service.scheduler.snapshot import Snapshot, memory_of
from service.scheduler.solve import Decision, solve
from service.tasks.models import Task
from service.tasks.watch import touch

log = logging.getLogger(__name__)

LEASE = timedelta(seconds=20)  # above the wall guard of the solver; a planner that was killed holds others up this long


class LeaseLost(Exception):
    """Another planner took over while this one was thinking. Its plan is rejected whole."""


def replan(parts: Parts) -> int:
    """Plan until no request is left, or another planner is at it; how many plans were made.

    Whoever finds the lease taken may go: its holder looks for requests once more after letting go.
    """
    made = 0
    while _asked(parts.db):
        token = _take_lease(parts.db)
        if token is None:
            return made
        try:
            while plan_once(parts, token):
                made += 1
        except LeaseLost:
            log.warning("another planner took over; the plan in hand is dropped")
            return made
        finally:
            _let_go(parts.db, token)
    return made


def plan_once(parts: Parts, token: str) -> bool:
    """Answer all requests there are with one plan; False if there are none. Raises LeaseLost."""
    with parts.db.begin() as session:
        seen = snapshot.read(session)
    if not seen.requests:
        return False
    began = time.perf_counter()
    decision = solve(seen.problem)
    seconds = time.perf_counter() - began
    with parts.db.begin() as session:
        _hold_lease(session, token)
        _write(session, parts, seen, decision, seconds)
    return True


def _asked(db: Database) -> bool:
    with db.begin() as session:
        return bool(session.scalar(select(exists(select(PlanRequest.id)))))


def _take_lease(db: Database) -> str | None:
    """A token of our own, unless another planner's lease runs."""
    token = new_id("planner")
    now = func.clock_timestamp()
    row = insert(PlannerLease).values(id=1, token=token, until=now + LEASE)
    free = row.on_conflict_do_update(
        index_elements=[PlannerLease.id], set_={"token": token, "until": now + LEASE}, where=PlannerLease.until < now
    )
    with db.begin() as session:
        return session.scalar(free.returning(PlannerLease.token))


def _let_go(db: Database, token: str) -> None:
    with db.begin() as session:
        session.execute(delete(PlannerLease).where(PlannerLease.token == token))


def _hold_lease(session: Session, token: str) -> None:
    """Lock the lease for this transaction and renew it; raises LeaseLost if it is another's."""
    lease = session.scalar(select(PlannerLease).where(PlannerLease.token == token).with_for_update())
    if lease is None:
        raise LeaseLost
    lease.until = clock(session) + LEASE


def _write(session: Session, parts: Parts, seen: Snapshot, decision: Decision, seconds: float) -> None:
    """Place what starts now, tell the others why they wait, keep the plan, and delete the requests it answers."""
    starting = {start.task: start for start in decision.starts if start.start == 0}
    reasons = _changed_reasons(seen, decision)
    touched = select(Task).where(Task.id.in_([*starting, *reasons])).order_by(Task.id).with_for_update()
    same = {task.id: task for task in session.scalars(touched) if _as_seen(task, seen)}
    _lock_nodes(session, {starting[id].node for id in same if id in starting})
    started = [id for id, task in same.items() if id in starting and _place(session, parts, task, starting[id])]
    for id, reason in reasons.items():
        if id in same:
            same[id].waiting = reason
            touch(session, same[id])
    session.execute(delete(PlanRequest).where(PlanRequest.id.in_(seen.requests)))
    if seen.problem.queued:
        dropped = sorted(set(starting) - set(started))
        session.add(_plan(seen, decision, seconds, {"started": started, "dropped": dropped}))
        log.info("plan by %s: %d start, %d wait", decision.method, len(started), len(seen.problem.queued) - len(started))
        if decision.note:
            log.warning("plan by %s after %s: %s", decision.method, decision.status, decision.note)


def _as_seen(task: Task, seen: Snapshot) -> bool:
    return task.status == TaskStatus.QUEUED and task.fence == seen.tasks[task.id].fence


def _changed_reasons(seen: Snapshot, decision: Decision) -> dict[str, dict[str, Any]]:
    offers = {id: waiting.Offer(node.name, len(node.devices), memory_of(node)) for id, node in seen.nodes.items()}
    reasons = waiting.explain(seen.problem, decision.starts, offers, seen.needs, seen.at)
    return {id: reason for id, reason in reasons.items() if waiting.differs(seen.tasks[id].waiting, reason, seen.at)}


def _lock_nodes(session: Session, node_ids: set[str]) -> None:
    session.scalars(select(Node).where(Node.id.in_(node_ids)).order_by(Node.id).with_for_update()).all()


def _place(session: Session, parts: Parts, task: Task, start: Start) -> bool:
    """Put the task on the lowest free devices of its node, which is locked; False if the node has changed too much."""
    node = session.get_one(Node, start.node)
    taken = select(func.unnest(Placement.device_indexes)).where(Placement.node_id == node.id, Placement.ended_at.is_(None))
    busy = set(session.scalars(taken))
    free = sorted(int(str(device["index"])) for device in node.devices if device["index"] not in busy)
    if node.status != "ready" or node.drained_at is not None or len(free) < start.gpus:
        return False
    now = clock(session)
    task.fence += 1
    task.status = check_task(TaskStatus(task.status), TaskStatus.RUNNING)
    task.waiting, task.started_at = None, task.started_at or now
    session.add(
        Placement(
            id=new_id("placement"),
            task_id=task.id,
            node_id=node.id,
            device_indexes=free[: start.gpus],
            fence=task.fence,
            created_at=now,
            lease_until=lease_until(now, parts.settings),
            expected_seconds=float(start.end),
        )
    )
    session.flush()
    touch_node(session, parts.hints, node.id)
    touch(session, task)
    return True


def _plan(seen: Snapshot, decision: Decision, seconds: float, done: dict[str, Any]) -> Plan:
    return Plan(
        id=new_id("plan"),
        requests=len(seen.requests),
        method=decision.method,
        solver_status=decision.status,
        objective=float(decision.objective),
        bound=decision.bound,
        seconds=seconds,
        problem=seen.problem.to_json(),
        decision={"starts": [asdict(start) for start in decision.starts], **done},
        note=decision.note,
    )
