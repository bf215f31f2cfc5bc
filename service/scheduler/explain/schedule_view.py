"""The schedule as a tenant may see it: which task runs where and until when, which waits and why. Others' tasks are anonymous.

Paged: the nodes by name, then the waiting tasks in the order of expected starts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session, load_only

from contract.states import TaskStatus
from service.database.engine import clock
from service.fleet.models import AnswerSession, Node, Placement
from service.fleet.node_health.quarantine import Trouble, trouble_of
from service.http.pagination import cursor_unknown, pack_cursor, unpack_cursor
from service.scheduler.models import Plan
from service.settings import Settings
from service.tasks.models import Task
from service.tasks.plan_status import queue_status

Interval = Field(description="Earliest and latest; the true moment lies between them most of the time")


class Running(BaseModel):
    """A task on a node. Another tenant's has neither id nor name."""

    task_id: str | None
    name: str | None
    gpus: int
    since: datetime
    leaving: bool = Field(description="It was asked to go, and brings its jobs to safety")
    expected_end: datetime | None
    expected_end_interval: list[datetime] | None = Interval
    beside: int = Field(description="How many other tasks share its GPUs")
    slowdown: float | None = Field(description="How many times slower than alone it has been of late beside them, as measured")


class Answering(BaseModel):
    """A base that is held on a GPU to answer who asks it. A task takes the GPU at once, so it counts as free."""

    base_model: str
    since: datetime


class ScheduledNode(BaseModel):
    name: str
    device_type: str
    gpus: int
    free: int
    drained: bool
    status: str = Field(
        description="ready, or why it takes nothing: stopping, unreadable, quarantined, resting, disk_full, not_applying"
    )
    trouble: str | None = Field(description="The same in a sentence")
    running: list[Running]
    answering: list[Answering] = Field(description="Bases that are held on free GPUs to answer completions")


class Waiting(BaseModel):
    """A queued task, in the order in which they are expected to start. Another tenant's has neither id, name nor reason."""

    task_id: str | None
    name: str | None
    gpus: int = Field(description="Of one node: as many as it asks for, or as its base needs where it is planned")
    place: int | None
    node: str | None = Field(description="Where it is planned")
    code: str | None
    sentence: str | None
    expected_start: datetime | None
    expected_start_interval: list[datetime] | None = Interval
    expected_end: datetime | None
    expected_end_interval: list[datetime] | None = Interval


class Schedule(BaseModel):
    """All nodes and the queue as the last plan left them, a page of them: nodes by name, and behind the last node the queue."""

    object: Literal["schedule"] = "schedule"
    planned_at: datetime | None
    nodes: list[ScheduledNode]
    waiting: list[Waiting]
    waiting_total: int = Field(description="On all pages")
    next_cursor: str | None = Field(description="Where the next page begins; null on the last one")


def schedule(session: Session, settings: Settings, tenant_id: str | None, cursor: str | None, limit: int) -> Schedule:
    """A page of `limit` nodes and waiting tasks for this tenant, or with every task named (None, for admins). The session must
    see all tenants' rows. Raises Invalid."""
    after = _After.read(cursor)
    nodes = _nodes(session, after.node, limit + 1) if after.place is None else []
    more, nodes = len(nodes) > limit, nodes[:limit]
    live = session.execute(
        select(Placement, Task)
        .join(Task, Task.id == Placement.task_id)
        .where(Placement.ended_at.is_(None), Placement.node_id.in_([node.id for node in nodes]))
        .order_by(Placement.expected_end, Placement.id)
    ).all()
    asked = select(AnswerSession).where(AnswerSession.ended_at.is_(None)).order_by(AnswerSession.created_at)
    held = session.scalars(asked.where(AnswerSession.node_id.in_([node.id for node in nodes]))).all()
    total, left, now = _queued(session), limit - len(nodes), clock(session)
    waiting: Sequence[_Waiter] = ()
    if not more and total:
        behind = _behind(_queue(session), after)
        more, waiting = len(behind) > left, behind[:left]
    last = waiting[-1] if waiting else None
    next_ = _After(nodes[-1].name if nodes else after.node) if last is None else _After(None, last.place, last.mark)
    return Schedule(
        planned_at=session.scalar(select(Plan.created_at).order_by(Plan.id.desc()).limit(1)),
        nodes=[
            _node(
                node,
                trouble_of(node, now, settings),
                [(placed, task) for placed, task in live if placed.node_id == node.id],
                [one for one in held if one.node_id == node.id],
                tenant_id,
            )
            for node in nodes
        ],
        waiting=[_waiting(one.task, one.said, tenant_id in (None, one.task.tenant_id)) for one in waiting],
        waiting_total=total,
        next_cursor=next_.write() if more else None,
    )


_NOWHERE = 1 << 53  # the place of tasks without a plan: behind all others


class _After(NamedTuple):
    """Page cursor: after a node, or after the waiting task with this mark, which had this place. Marks are digests of ids,
    since the task may be another tenant's."""

    node: str | None = None
    place: int | None = None
    mark: str | None = None

    @classmethod
    def read(cls, cursor: str | None) -> "_After":
        """Raises Invalid."""
        if cursor is None:
            return cls()
        match unpack_cursor(cursor):
            case [str(node)] if "\0" not in node:
                return cls(node)
            case [int(place), str(mark)]:
                return cls(None, place, mark)
        raise cursor_unknown()

    def write(self) -> str:
        return pack_cursor([self.node or ""] if self.place is None else [self.place, self.mark])


def _nodes(session: Session, after: str | None, most: int) -> list[Node]:
    ready = select(Node).where(Node.status == "ready").order_by(Node.name).limit(most)
    return list(session.scalars(ready if after is None else ready.where(Node.name > after)))


def _queued(session: Session) -> int:
    return session.scalars(select(func.count()).select_from(Task).where(Task.status == TaskStatus.QUEUED)).one()


class _Waiter(NamedTuple):
    """A waiting task, and its entry of the plan in force."""

    task: Task
    said: Mapping[str, Any]

    @property
    def place(self) -> int:
        return self.said.get("place") or _NOWHERE

    @property
    def mark(self) -> str:
        return hashlib.sha256(self.task.id.encode()).hexdigest()[:24]


def _queue(session: Session) -> list[_Waiter]:
    """The waiting tasks in the order of expected starts."""
    shown = load_only(Task.tenant_id, Task.name, Task.gpus, Task.waiting, Task.status, Task.fence)
    queued = select(Task).where(Task.status == TaskStatus.QUEUED).order_by(Task.queued_at, Task.id).options(shown)
    entries = queue_status.read_all(session)
    waiters = [_Waiter(task, queue_status.waiting_of(task, entries) or {}) for task in session.scalars(queued)]
    return sorted(waiters, key=lambda one: one.place)


def _behind(queued: Sequence[_Waiter], after: _After) -> Sequence[_Waiter]:
    """The waiting tasks after the cursor. Places move up as tasks start, so it looks for the task itself; if that has started,
    the task now at its place comes next, and none is skipped."""
    if after.place is None:
        return queued
    at = next((at for at, one in enumerate(queued) if one.mark == after.mark), None)
    return queued[at + 1 :] if at is not None else [one for one in queued if one.place >= after.place]


def _node(
    node: Node,
    trouble: Trouble | None,
    live: list[tuple[Placement, Task]],
    held: list[AnswerSession],
    tenant_id: str | None,
) -> ScheduledNode:
    return ScheduledNode(
        name=node.name,
        device_type=node.device_type,
        gpus=len(node.devices),
        free=max(0, len(node.devices) - len({index for placed, _ in live for index in placed.device_indexes})),
        drained=node.drained_at is not None,
        status="ready" if trouble is None else trouble.status,
        trouble=None if trouble is None else trouble.sentence,
        running=[_running(placed, task, tenant_id in (None, task.tenant_id), live) for placed, task in live],
        answering=[Answering(base_model=one.base_model, since=one.created_at) for one in held],
    )


def _shares(placed: Placement, other: Placement) -> bool:
    return sorted(placed.device_indexes) == sorted(other.device_indexes)


def _running(placed: Placement, task: Task, own: bool, live: list[tuple[Placement, Task]]) -> Running:
    low, high = placed.expected_low, placed.expected_high
    return Running(
        task_id=task.id if own else None,
        name=task.name if own else None,
        gpus=len(placed.device_indexes),
        since=placed.created_at,
        leaving=placed.leaving is not None,
        expected_end=placed.expected_end,
        expected_end_interval=[low, high] if low is not None and high is not None else None,
        beside=sum(_shares(placed, other) for other, _ in live) - 1,
        slowdown=placed.current_slowdown,
    )


def _waiting(task: Task, said: Mapping[str, Any], own: bool) -> Waiting:
    told = ("place", "node", "expected_start", "expected_start_interval", "expected_end", "expected_end_interval")
    return Waiting(
        task_id=task.id if own else None,
        name=task.name if own else None,
        gpus=said.get("gpus") or task.gpus,
        code=said.get("code") if own else None,
        sentence=said.get("sentence") if own else None,
        **{name: said.get(name) for name in told},
    )
