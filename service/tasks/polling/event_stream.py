"""Streams a task's events as server-sent events (HTML standard, 9.2), starting after any event number.

A stream holds neither a thread nor a database connection. Streams at the same event share one read.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from contract.states import TASK_TERMINAL, TaskStatus
from service.database.engine import Database
from service.tasks.models import Task, TaskEvent
from service.tasks.polling.long_polling import ChangeListener
from service.tenants.api_keys import RIGHTS_CHANGED, Principal
from service.tenants.tenant_scope import find, scoped

_BATCH = 500  # events per read
PACE_SECONDS = 0.1  # between two reads of a stream; events that occur meanwhile are sent in one batch
SILENCE_SECONDS = 15.0  # after which a comment line keeps the connection alive
LONGEST_SECONDS = 900.0  # of one stream; its client reconnects with the last id, which checks its API key again

Allowed = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class EventBatch:
    """Formatted events. `over`: the task has ended, and these are its last events."""

    text: str
    last: int
    full: bool
    over: bool


class Feed:
    """Shares reads: all streams that wait for the same events get them from one query."""

    def __init__(self, change_listener: ChangeListener) -> None:
        self._listener = change_listener
        self._reads: dict[tuple[str, str, int, int], asyncio.Task[EventBatch]] = {}  # used on the event loop only

    async def after(self, db: Database, principal: Principal, task_id: str, number: int) -> EventBatch:
        """The task's next events, in the calling tenant's `db`. Raises NotFound if the task is not the caller's."""
        # `heard` is in the key, since a read begun before the last notice may miss that notice's change
        key = principal.tenant_id, task_id, number, self._listener.heard
        if key not in self._reads:
            read = asyncio.ensure_future(run_in_threadpool(_read, db, principal, task_id, number))
            self._reads[key] = read
            read.add_done_callback(lambda _: self._reads.pop(key))
        return await asyncio.shield(self._reads[key])

    async def stream(
        self, db: Database, principal: Principal, task_id: str, first: EventBatch, allowed: Allowed
    ) -> AsyncIterator[str]:
        """Yields frames, beginning with `first`, until the task has ended, the caller is not `allowed` any more, or the process
        stops. What took the rights away wakes it; where no notice told so, it finds out after SILENCE_SECONDS."""
        batch, loop = first, asyncio.get_running_loop()
        until = loop.time() + LONGEST_SECONDS
        with self._listener.watch(task_id, RIGHTS_CHANGED) as changed:
            yield f"retry: 1000\n\n{batch.text}"
            while not batch.over and not self._listener.released and loop.time() < until:
                changed.clear()
                if not await allowed():
                    return
                batch = await self.after(db, principal, task_id, batch.last)
                if batch.text:
                    yield batch.text
                if not batch.full and not batch.over:
                    if not await heard(changed, SILENCE_SECONDS):
                        yield ": still here\n\n"
                    await asyncio.sleep(PACE_SECONDS)


async def heard(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; whether it was set within so many seconds."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _read(db: Database, principal: Principal, task_id: str, number: int) -> EventBatch:
    with db.begin() as session:
        over = TaskStatus(find(session, Task, task_id, principal, "task").status) in TASK_TERMINAL  # read before the events
        events = scoped(select(TaskEvent).where(TaskEvent.task_id == task_id, TaskEvent.number > number), TaskEvent, principal)
        found = list(session.scalars(events.order_by(TaskEvent.number).limit(_BATCH)))
    full = len(found) == _BATCH
    last = found[-1].number if found else number
    return EventBatch("".join(_frame(event) for event in found), last, full, over and not full)


def _frame(event: TaskEvent) -> str:
    said = {"number": event.number, "type": event.kind, "created_at": event.created_at.isoformat(), "data": event.data}
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(said, separators=(',', ':'))}\n\n"
