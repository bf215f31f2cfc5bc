"""Streams the events of a batch's tasks as one sequence of server-sent events, which a reader can resume anywhere.

Events are numbered per task, so an event's id holds the last number of each task, in the batch's order: `3.1.0.2`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sqlalchemy import and_, or_, select
from starlette.concurrency import run_in_threadpool

from contract.states import TASK_TERMINAL
from service.batches.models import Batch
from service.database.engine import Database
from service.http.problems import invalid_field
from service.tasks.models import Task, TaskEvent
from service.tasks.polling.event_stream import LONGEST_SECONDS, PACE_SECONDS, SILENCE_SECONDS, Allowed, heard
from service.tasks.polling.long_polling import ChangeListener
from service.tenants.api_keys import RIGHTS_CHANGED, Principal
from service.tenants.tenant_scope import find, scoped

_MOST = 500  # events per read


@dataclass(frozen=True)
class MergedEvents:
    """Formatted events, and the last number of each task after them. `over`: all tasks have ended, and nothing follows."""

    task_ids: tuple[str, ...]
    text: str
    numbers: tuple[int, ...]
    full: bool
    over: bool


async def after(db: Database, principal: Principal, batch_id: str, cursor: str | None) -> MergedEvents:
    """The events after the id `cursor` (None: all). Raises NotFound, or Invalid for an id that is not of this batch."""
    return await run_in_threadpool(_read, db, principal, batch_id, cursor)


async def stream(
    change_listener: ChangeListener, db: Database, principal: Principal, batch_id: str, first: MergedEvents, allowed: Allowed
) -> AsyncIterator[str]:
    """Yields frames, beginning with `first`, as a task's stream does, until all tasks have ended."""
    read, loop = first, asyncio.get_running_loop()
    until = loop.time() + LONGEST_SECONDS
    with change_listener.watch(*first.task_ids, RIGHTS_CHANGED) as changed:
        yield f"retry: 1000\n\n{read.text}"
        while not read.over and not change_listener.released and loop.time() < until:
            changed.clear()
            if not await allowed():
                return
            read = await after(db, principal, batch_id, _cursor(read.numbers))
            if read.text:
                yield read.text
            if not read.full and not read.over:
                if not await heard(changed, SILENCE_SECONDS):
                    yield ": still here\n\n"
                await asyncio.sleep(PACE_SECONDS)


def _read(db: Database, principal: Principal, batch_id: str, cursor: str | None) -> MergedEvents:
    with db.begin() as session:
        ids = find(session, Batch, batch_id, principal, "batch").task_ids
        numbers = [0] * len(ids) if cursor is None else _numbers(cursor, len(ids))
        open_ = session.scalar(
            scoped(select(Task.id).where(Task.id.in_(ids), Task.status.not_in(TASK_TERMINAL)), Task, principal)
        )
        news = or_(*(and_(TaskEvent.task_id == id, TaskEvent.number > number) for id, number in zip(ids, numbers, strict=True)))
        events = scoped(select(TaskEvent).where(news), TaskEvent, principal)
        order = TaskEvent.created_at, TaskEvent.task_id, TaskEvent.number
        found = list(session.scalars(events.order_by(*order).limit(_MOST)))
    text, at = "", {id: index for index, id in enumerate(ids)}
    for event in _in_turn(found, dict(zip(ids, numbers, strict=True))):
        numbers[at[event.task_id]] = event.number
        text += _frame(event, at[event.task_id], numbers)
    full = len(found) == _MOST
    return MergedEvents(tuple(ids), text, tuple(numbers), full, open_ is None and not full)


def _in_turn(found: Sequence[TaskEvent], known: dict[str, int]) -> list[TaskEvent]:
    """The events that follow each task's last known number without a gap: clocks may order two of one task wrongly."""
    by_task: dict[str, list[TaskEvent]] = {}
    for event in found:
        by_task.setdefault(event.task_id, []).append(event)
    for events in by_task.values():
        events.sort(key=lambda event: event.number)
    taken = []
    for event in found:  # in the order of time, but each task's events in the order of their numbers
        following = by_task[event.task_id].pop(0)
        if following.number == known[event.task_id] + 1:
            known[event.task_id] = following.number
            taken.append(following)
    return taken


def _numbers(cursor: str, tasks: int) -> list[int]:
    parts = cursor.split(".")
    if len(parts) != tasks or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        message = f"is not the id of an event of this batch: those are {tasks} numbers with dots between them"
        raise invalid_field("last-event-id", "event_unknown", message)
    return [int(part) for part in parts]


def _cursor(numbers: Sequence[int]) -> str:
    return ".".join(map(str, numbers))


def _frame(event: TaskEvent, index: int, numbers: Sequence[int]) -> str:
    said = {"task": index, "task_id": event.task_id, "number": event.number, "type": event.kind}
    said |= {"created_at": event.created_at.isoformat(), "data": event.data}
    return f"id: {_cursor(numbers)}\nevent: {event.kind}\ndata: {json.dumps(said, separators=(',', ':'))}\n\n"
