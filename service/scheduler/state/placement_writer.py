"""Writes a plan's placements: starts on free devices, and joins on devices of others. Skips each task that changed since it was
read, and each place that did."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.database.engine import clock, new_id
from service.dependencies import Dependencies
from service.fleet import answer_sessions
from service.fleet.lease_clock import lease_until
from service.fleet.models import NODE_LOCK, Node, Placement
from service.fleet.node_health.quarantine import by_trust, trouble_of
from service.scheduler.core.decision import Decision, Join
from service.scheduler.core.joins.joining import settled
from service.scheduler.core.problem import Start
from service.scheduler.estimate.prediction_intervals import PredictedInterval
from service.scheduler.estimate.sharing_estimate import ALONE_AFTER
from service.scheduler.explain.join_sentences import runs_alone, shares_sentence
from service.scheduler.explain.width_sentences import wide_for_base
from service.scheduler.state.executors import Shared, ends_of, executor_of
from service.scheduler.state.snapshot import Snapshot
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import touch_nodes
from service.tasks.lifecycle.task_trace import waited
from service.tasks.lifecycle.transitions import enter
from service.tasks.models import Task
from service.tasks.plan_status.plan_history import note

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placed:
    """Outcome of the starts and joins: placed tasks, and dropped ones, which changed or whose place did."""

    started: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stay:
    """What is expected of a placement, in seconds: alone, its end, the end's interval; and whom it joins."""

    alone: float
    end: float
    interval: tuple[float, float]
    join: Join | None = None
    others: int = 0


def starting(seen: Snapshot, decision: Decision) -> dict[str, Start]:
    """The starts at 0, by task."""
    return {start.task: start for start in (*seen.reserved, *decision.starts) if start.start == 0}


def planned_ends(seen: Snapshot, decision: Decision) -> dict[str, Shared]:
    """The ends of tasks on executors that may be shared, once the decision's starts at 0 and its joins are made."""
    return ends_of(settled(seen.problem, decision).running)


def place(session: Session, dependencies: Dependencies, seen: Snapshot, decision: Decision) -> Placed:
    """Create the placements that start now. The caller's transaction holds the planner's lease."""
    starts, joins = starting(seen, decision), {join.task: join for join in decision.joins}
    nodes_of = {**{task: join.node for task, join in joins.items()}, **{task: start.node for task, start in starts.items()}}
    same = unchanged(session, seen, nodes_of)
    writer = _Writer(session, dependencies, seen, decision, {nodes_of[task.id] for task in same})
    with session.no_autoflush:  # flush all rows at once
        started = [task for task in same if task.id in starts and writer.start(task, starts[task.id])]
        started += [task for task in same if task.id in joins and writer.join(task, joins[task.id])]
        bump_version_and_notify(session, *started, details=writer.wide)
    touch_nodes(session, dependencies.wakeups, *sorted({nodes_of[task.id] for task in started}))
    done = {task.id for task in started}
    return Placed(tuple(sorted(done)), tuple(sorted(nodes_of.keys() - done)))


def unchanged(session: Session, seen: Snapshot, ids: Iterable[str]) -> list[Task]:
    """The tasks that are unchanged since the snapshot, locked, in order of their ids."""
    rows = select(Task).where(Task.id.in_(list(ids))).order_by(Task.id).with_for_update()
    fresh = session.scalars(rows.execution_options(populate_existing=True))
    return [task for task in fresh if task.status == TaskStatus.QUEUED and task.fence == seen.tasks[task.id].fence]


class _Writer:
    """The nodes of one plan's placements, locked, and what is on their devices."""

    def __init__(
        self, session: Session, dependencies: Dependencies, seen: Snapshot, decision: Decision, node_ids: Iterable[str]
    ) -> None:
        self._session, self._dependencies, self._seen = session, dependencies, seen
        self._between, self._ends = seen.between(decision.starts), planned_ends(seen, decision)
        locked = select(Node).where(Node.id.in_(list(node_ids))).order_by(Node.id).with_for_update(**NODE_LOCK)
        self._nodes = {node.id: node for node in session.scalars(locked.execution_options(populate_existing=True))}
        live = select(Placement, Task).join(Task, Task.id == Placement.task_id)
        rows = session.execute(live.where(Placement.node_id.in_(self._nodes), Placement.ended_at.is_(None)))
        self._live: list[tuple[Placement, Task]] = [(placed, task) for placed, task in rows]
        self.wide: dict[str, str] = {}  # by task, that it has more GPUs than it asks for
        self._now = clock(session)

    def start(self, task: Task, start: Start) -> bool:
        """Place the task on free devices of its node, if there still are enough."""
        node = self._nodes[start.node]
        free = by_trust(node, _free(node, self._busy(node), self._now, self._dependencies.settings), task)
        if len(free) < start.gpus:
            return False
        between, shared = self._between.get(task.id, PredictedInterval((0, 0), (start.end, start.end))), self._ends.get(task.id)
        later = 0 if shared is None else max(0, shared.end - start.end)  # for the tasks that join it in this very plan
        low, high = between.end
        others = 0 if shared is None else shared.others
        stay = Stay(start.end, start.end + later, (low + later, high + later), others=others)
        self._place(task, node, sorted(free[: start.gpus]), stay)
        return True

    def join(self, task: Task, join: Join) -> bool:
        """Place the task on the devices of the task that it joins, if all who are there are of its base and stay."""
        node = self._nodes[join.node]
        host = next((placed for placed, other in self._live if other.id == join.beside and placed.node_id == node.id), None)
        if host is None or not _open(node, self._now, self._dependencies.settings):
            return False
        there = [(placed, other) for placed, other in self._live if executor_of(placed) == executor_of(host)]
        if any(placed.leaving is not None or _base(other) != _base(task) for placed, other in there):
            return False
        shared, spread = self._ends[task.id], self._seen.spreads.get(task.id)
        low, high = (1.0, 1.0) if spread is None else (min(1.0, spread.low), max(1.0, spread.high))
        stay = Stay(shared.end / join.slowdown, shared.end, (shared.end * low, shared.end * high), join, shared.others)
        self._place(task, node, list(host.device_indexes), stay)
        return True

    def _busy(self, node: Node) -> set[int]:
        """Devices that live placements hold."""
        return {index for placed, _ in self._live if placed.node_id == node.id for index in placed.device_indexes}

    def _place(self, task: Task, node: Node, devices: list[int], stay: Stay) -> None:
        """Place the task on devices of its node; both are locked."""
        enter(task, TaskStatus.RUNNING, self._now)
        answer_sessions.give_way(self._session, node.id, devices)
        low, high = stay.interval
        bound = self._seen.work.bound(task)
        placement = Placement(
            id=new_id("placement"),
            task_id=task.id,
            node_id=node.id,
            device_indexes=devices,
            device_type=node.device_type,
            fence=task.fence,
            created_at=self._now,
            lease_until=lease_until(self._now, self._dependencies.settings),
            expected_seconds=float(stay.alone),
            waited_seconds=(self._now - (task.queued_at or task.created_at)).total_seconds(),
            expected_end=self._now + timedelta(seconds=stay.end),
            expected_low=self._now + timedelta(seconds=low),
            expected_high=self._now + timedelta(seconds=high),
            beside=stay.others,
            max_slowdown=bound if bound > 1 else None,
        )
        self._session.add(placement)
        self._live.append((placement, task))
        waited(self._session, task, self._now)
        if stay.join is None and self._seen.narrowest(task.id, node.id) > task.gpus:
            self.wide[task.id] = wide_for_base(len(devices), task.gpus, node.device_type)
        note(self._session, task, "placed", _placed(placement, node, task, stay, self.wide.get(task.id)))
        log.info("task %s is placed on node %s", task.id, node.name, extra={"request_id": task.request_id})


def _base(task: Task) -> tuple[str, str, str]:
    return task.base_model, task.base_revision, task.precision


def _open(node: Node, now: datetime, settings: Settings) -> bool:
    return node.status == "ready" and node.drained_at is None and trouble_of(node, now, settings) is None


def _free(node: Node, busy: set[int], now: datetime, settings: Settings) -> set[int]:
    """Free devices; none if the node has changed too much."""
    if node.status != "ready" or node.drained_at is not None:
        return set()
    trouble = trouble_of(node, now, settings)
    if trouble is not None and (not trouble.probing or busy):
        return set()
    return {int(str(device["index"])) for device in node.devices} - busy


def _placed(placement: Placement, node: Node, task: Task, stay: Stay, wide: str | None) -> Mapping[str, Any]:
    ends = (placement.expected_end, placement.expected_low, placement.expected_high)
    end, *interval = [moment.isoformat() if moment is not None else None for moment in ends]
    said: dict[str, Any] = {
        "node": node.name,
        "device_indexes": placement.device_indexes,
        "waited_seconds": placement.waited_seconds,
        "expected_end": end,
        "expected_end_interval": interval,
    }
    if stay.join is not None:
        said |= {
            "slowdown": round(stay.join.slowdown, 2),
            "beside": stay.join.among,
            "sentence": shares_sentence(stay.join, node.name, node.device_type),
        }
        return said
    words = [wide] if wide is not None else []
    words += [runs_alone(task.lost_executors)] if task.lost_executors >= ALONE_AFTER else []
    return said | ({"sentence": " ".join(words)} if words else {})
