"""Writes a plan as rows: placements, reasons, history, the plan itself. Skips each task that changed since it was read."""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.database.engine import clock, new_id
from service.dependencies import Dependencies
from service.fleet.lease_clock import lease_until
from service.fleet.models import Node, Placement
from service.fleet.node_health.quarantine import by_trust, trouble_of
from service.scheduler.core.decision import Decision
from service.scheduler.core.problem import Start
from service.scheduler.estimate.prediction_intervals import Between
from service.scheduler.explain import plan_news
from service.scheduler.models import Plan, PlanRequest
from service.scheduler.state.batch_rows import note_plans
from service.scheduler.state.plan_announcements import reasons_of
from service.scheduler.state.snapshot import Snapshot
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import touch_nodes
from service.tasks.lifecycle.transitions import enter
from service.tasks.models import Task
from service.tasks.plan_status import queue_status
from service.tasks.plan_status.plan_history import note

log = logging.getLogger(__name__)

_SAME_END = 0.05  # part of the remaining time by which a running task's expected end must move to be written


@dataclass(frozen=True)
class Placed:
    """Outcome of the starts: placed tasks, and dropped ones, which changed or whose node did."""

    started: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def starting(seen: Snapshot, decision: Decision) -> dict[str, Start]:
    """The starts at 0, by task."""
    return {start.task: start for start in (*seen.reserved, *decision.starts) if start.start == 0}


def place(session: Session, parts: Dependencies, seen: Snapshot, decision: Decision) -> Placed:
    """Create the placements that start now. The caller's transaction holds the planner's lease."""
    starts = starting(seen, decision)
    between = seen.between(decision.starts)
    same = _same(session, seen, starts)
    nodes = _lock_nodes(session, {starts[task.id].node for task in same})
    busy = _busy(session, nodes)
    now = clock(session)
    started = []
    with session.no_autoflush:  # flush all rows at once
        for task in same:
            start = starts[task.id]
            node = nodes[start.node]
            free = by_trust(node, _free(node, busy[start.node], now, parts.settings), task)
            if len(free) >= start.gpus:
                busy[start.node] |= set(free[: start.gpus])
                _place(session, parts, task, node, sorted(free[: start.gpus]), start, between.get(task.id), now)
                started.append(task)
        bump_version_and_notify(session, *started)
    touch_nodes(session, parts.wakeups, *sorted({starts[task.id].node for task in started}))
    done = {task.id for task in started}
    return Placed(tuple(sorted(done)), tuple(sorted(set(starts) - done)))


def tell(session: Session, seen: Snapshot, decision: Decision, placed: Placed, seconds: float) -> None:
    """Write the reasons of the waiting tasks, notify news, store the plan, and delete the requests it answers.

    The caller's transaction holds the planner's lease.
    """
    between = seen.between(decision.starts)
    said = reasons_of(seen, decision, between)
    before = {id: seen.tasks[id].waiting for id in said}
    found = plan_news.choose(before, said, seen.at, plan_news.budget(_since_last(session)))
    queue_status.publish(session, seen.at, seen.tasks, said, found.put_off)
    if found.told:
        with session.no_autoflush:
            same = _same(session, seen, found.told)
            for task in same:
                task.waiting = found.told[task.id]
                note(session, task, "waits", found.told[task.id])
            bump_version_and_notify(session, *same)
    session.execute(delete(PlanRequest).where(PlanRequest.id.in_(seen.requests)))
    note_plans(session, seen.at, decision.batches)
    if seen.problem.queued or seen.reserved:
        session.add(_plan(session, seen, decision, seconds, placed))
        waits = len(seen.problem.queued) + len(seen.reserved) - len(placed.started)
        log.info("plan by %s: %d start, %d wait", decision.method, len(placed.started), waits)
        if decision.note:
            log.warning("plan by %s after %s: %s", decision.method, decision.status, decision.note)


def _since_last(session: Session) -> float | None:
    """Seconds since the newest stored plan."""
    newest = session.scalar(select(Plan.created_at).order_by(Plan.id.desc()).limit(1))
    return None if newest is None else (clock(session) - newest).total_seconds()


def note_ends(session: Session, seen: Snapshot) -> None:
    """Update the expected ends of running tasks where they have moved. Needs a transaction of its own."""
    between = seen.between()
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
    mine = set(session.scalars(free.with_for_update(skip_locked=True)))  # those with a report in flight follow later
    said = [one for one in moved if one["of"] in mine]
    if said:
        session.connection().execute(_SAY_END, said)


_SAY_END = (
    update(Placement.__table__)  # type: ignore[arg-type]
    .where(Placement.id == bindparam("of"))
    .values(expected_end=bindparam("end"), expected_low=bindparam("low"), expected_high=bindparam("high"))
)


def _same(session: Session, seen: Snapshot, ids: Iterable[str]) -> list[Task]:
    """The tasks that are unchanged since the snapshot, locked, in order of their ids."""
    rows = select(Task).where(Task.id.in_(list(ids))).order_by(Task.id).with_for_update()
    fresh = session.scalars(rows.execution_options(populate_existing=True))
    return [task for task in fresh if task.status == TaskStatus.QUEUED and task.fence == seen.tasks[task.id].fence]


# ---- what is placed --------------------------------------------------------------------------------------------------


def _lock_nodes(session: Session, node_ids: set[str]) -> dict[str, Node]:
    locked = select(Node).where(Node.id.in_(node_ids)).order_by(Node.id).with_for_update()
    return {node.id: node for node in session.scalars(locked.execution_options(populate_existing=True))}


def _busy(session: Session, nodes: Iterable[str]) -> dict[str, set[int]]:
    """Devices of each node that live placements hold."""
    held = select(Placement.node_id, Placement.device_indexes)
    found: dict[str, set[int]] = {node: set() for node in nodes}
    for node, indexes in session.execute(held.where(Placement.node_id.in_(found), Placement.ended_at.is_(None))):
        found[node] |= set(indexes)
    return found


def _free(node: Node, busy: set[int], now: datetime, settings: Settings) -> set[int]:
    """Free devices; none if the node has changed too much."""
    if node.status != "ready" or node.drained_at is not None:
        return set()
    trouble = trouble_of(node, now, settings)
    if trouble is not None and (not trouble.probing or busy):
        return set()
    return {int(str(device["index"])) for device in node.devices} - busy


def _place(
    session: Session,
    parts: Dependencies,
    task: Task,
    node: Node,
    devices: list[int],
    start: Start,
    between: Between | None,
    now: datetime,
) -> None:
    """Place the task on devices of its node; both are locked."""
    enter(task, TaskStatus.RUNNING, now)
    placement = Placement(
        id=new_id("placement"),
        task_id=task.id,
        node_id=node.id,
        device_indexes=devices,
        fence=task.fence,
        created_at=now,
        lease_until=lease_until(now, parts.settings),
        expected_seconds=float(start.end),
        waited_seconds=(now - (task.queued_at or task.created_at)).total_seconds(),
        **_ends(now, start, between),
    )
    session.add(placement)
    note(session, task, "placed", _placed(placement, node))
    log.info("task %s is placed on node %s", task.id, node.name, extra={"request_id": task.request_id})


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


def _plan(session: Session, seen: Snapshot, decision: Decision, seconds: float, placed: Placed) -> Plan:
    late = [asdict(miss) for miss in decision.late]
    decided = {"held": decision.held, "solved": decision.solved}
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
        decision={"starts": [asdict(start) for start in decision.starts], "late": late, **decided, **asdict(placed)},
        note=decision.note,
    )
