"""A plan becomes rows: placements, reasons, history, the plan itself. Each task only while it is as it was read."""

import logging
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from contract.states import TaskStatus, check_task
from service.db import clock, new_id
from service.fleet.leases import lease_until
from service.fleet.models import Node, Placement
from service.fleet.placements import touch_node
from service.parts import Parts
from service.scheduler.history import note
from service.scheduler.intervals import Between, intervals
from service.scheduler.models import Plan, PlanRequest
from service.scheduler.problem import Start
from service.scheduler.snapshot import Snapshot
from service.scheduler.solve import Decision
from service.scheduler.told import changed, reasons_of
from service.tasks.models import Task
from service.tasks.watch import touch

log = logging.getLogger(__name__)

_SAME_END = 0.05  # a running task's expected end that moved by less than this part of what is left is not written


def write(session: Session, parts: Parts, seen: Snapshot, decision: Decision, seconds: float) -> None:
    """Place what starts now, tell the others why they wait, keep the plan, and delete the requests it answers.

    The caller's transaction holds the planner's lease.
    """
    between = intervals(seen.problem.running, decision.starts, seen.spreads)
    starting = {start.task: start for start in (*seen.promised, *decision.starts) if start.start == 0}
    told = changed(seen, reasons_of(seen, decision, between))
    touched = select(Task).where(Task.id.in_([*starting, *told])).order_by(Task.id).with_for_update()
    fresh = session.scalars(touched.execution_options(populate_existing=True))
    same = {task.id: task for task in fresh if _as_seen(task, seen)}
    _lock_nodes(session, {starting[id].node for id in same if id in starting})
    placed = {id: _place(session, parts, task, starting[id], between.get(id)) for id, task in same.items() if id in starting}
    started = [id for id, done in placed.items() if done]
    for id, reason in told.items():
        if id in same:
            same[id].waiting = reason
            touch(session, same[id])
            note(session, same[id], "waits", reason)
    session.execute(delete(PlanRequest).where(PlanRequest.id.in_(seen.requests)))
    if seen.problem.queued or seen.promised:
        dropped = sorted(set(starting) - set(started))
        session.add(_plan(session, seen, decision, seconds, {"started": started, "dropped": dropped}))
        waits = len(seen.problem.queued) + len(seen.promised) - len(started)
        log.info("plan by %s: %d start, %d wait", decision.method, len(started), waits)
        if decision.note:
            log.warning("plan by %s after %s: %s", decision.method, decision.status, decision.note)


def note_ends(session: Session, seen: Snapshot) -> None:
    """Write down when running tasks are expected to end, where that has moved. For a transaction of its own."""
    between = intervals(seen.problem.running, (), seen.spreads)
    moved = []
    for run in seen.problem.running:
        placed = seen.placements.get(run.id)
        if placed is None or placed.leaving is not None:
            continue
        end = seen.at + timedelta(seconds=run.remaining)
        if placed.expected_end is None or abs((end - placed.expected_end).total_seconds()) > _SAME_END * run.remaining:
            low, high = (seen.at + timedelta(seconds=s) for s in between[run.id].end)
            moved.append({"of": placed.id, "end": end, "low": low, "high": high})
    if not moved:
        return
    ids = [one["of"] for one in moved]
    free = select(Placement.id).where(Placement.id.in_(ids), Placement.ended_at.is_(None)).order_by(Placement.id)
    mine = set(session.scalars(free.with_for_update(skip_locked=True)))  # one whose report is just being written is told later
    said = [one for one in moved if one["of"] in mine]
    if said:
        session.connection().execute(_SAY_END, said)


_SAY_END = (
    update(Placement.__table__)  # type: ignore[arg-type]
    .where(Placement.id == bindparam("of"))
    .values(expected_end=bindparam("end"), expected_low=bindparam("low"), expected_high=bindparam("high"))
)


def _as_seen(task: Task, seen: Snapshot) -> bool:
    return task.status == TaskStatus.QUEUED and task.fence == seen.tasks[task.id].fence


# ---- what is placed --------------------------------------------------------------------------------------------------


def _lock_nodes(session: Session, node_ids: set[str]) -> None:
    locked = select(Node).where(Node.id.in_(node_ids)).order_by(Node.id).with_for_update()
    session.scalars(locked.execution_options(populate_existing=True)).all()


def _place(session: Session, parts: Parts, task: Task, start: Start, between: Between | None) -> bool:
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
    placement = Placement(
        id=new_id("placement"),
        task_id=task.id,
        node_id=node.id,
        device_indexes=free[: start.gpus],
        fence=task.fence,
        created_at=now,
        lease_until=lease_until(now, parts.settings),
        expected_seconds=float(start.end),
        waited_seconds=(now - (task.queued_at or task.created_at)).total_seconds(),
        **_ends(now, start, between),
    )
    session.add(placement)
    session.flush()
    touch_node(session, parts.hints, node.id)
    touch(session, task)
    note(session, task, "placed", _placed(placement, node))
    log.info("task %s is placed on node %s", task.id, node.name, extra={"request_id": task.request_id})
    return True


def _ends(now: datetime, start: Start, between: Between | None) -> dict[str, datetime]:
    low, high = between.end if between is not None else (start.end, start.end)
    ends = {"expected_end": float(start.end), "expected_low": low, "expected_high": high}
    return {name: now + timedelta(seconds=seconds) for name, seconds in ends.items()}


def _placed(placement: Placement, node: Node) -> dict[str, Any]:
    ends = (placement.expected_end, placement.expected_low, placement.expected_high)
    end, *interval = [moment.isoformat() if moment is not None else None for moment in ends]
    return {
        "node": node.name,
        "device_indexes": placement.device_indexes,
        "waited_seconds": placement.waited_seconds,
        "expected_end": end,
        "expected_end_interval": interval,
    }


def _plan(session: Session, seen: Snapshot, decision: Decision, seconds: float, done: dict[str, Any]) -> Plan:
    late = [asdict(miss) for miss in decision.late]
    return Plan(
        id=new_id("plan"),
        requests=len(seen.requests),
        method=decision.method,
        solver_status=decision.status,
        objective=float(decision.objective),
        bound=decision.bound,
        seconds=seconds,
        latency_seconds=(clock(session) - seen.oldest).total_seconds() if seen.oldest is not None else None,
        problem=seen.problem.to_json(),
        decision={"starts": [asdict(start) for start in decision.starts], "late": late, **done},
        note=decision.note,
    )
