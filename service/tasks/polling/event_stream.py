"""A task's events as server-sent events (HTML standard, 9.2), from any number on.

A stream holds neither a thread nor a database connection. Streams at the same event share one read.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from contract.states import TASK_TERMINAL, TaskStatus
from service.database.engine import Database
from service.tasks.models import Task, TaskEvent
from service.tasks.polling.task_watcher import Watcher
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped

_BATCH = 500  # events of one read
_PACE_SECONDS = 0.1  # between two reads of a stream: what happens meanwhile is sent together
_SILENCE_SECONDS = 15.0  # after which a comment shows that the stream still stands
LONGEST_SECONDS = 900.0  # of one stream; its reader comes again with the last id, and its key is looked at again


@dataclass(frozen=True)
class Batch:
    """Events as they are sent. `over`: the task has ended, and nothing comes after these."""

    text: str
    last: int
    full: bool
    over: bool


class Feed:
    """Reads events once for all streams that wait for the same ones."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._reads: dict[tuple[str, str, int, int], asyncio.Task[Batch]] = {}  # touched on the loop alone

    async def after(self, db: Database, principal: Principal, task_id: str, number: int) -> Batch:
        """The task's next events. Raises NotFound where the task is not the caller's, whose `db` it is."""
        # a read that was begun before the last notice may lack what it told of
        key = principal.tenant_id, task_id, number, self._watcher.heard
        if key not in self._reads:
            read = asyncio.ensure_future(run_in_threadpool(_read, db, principal, task_id, number))
            self._reads[key] = read
            read.add_done_callback(lambda _: self._reads.pop(key))
        return await asyncio.shield(self._reads[key])

    async def stream(self, db: Database, principal: Principal, task_id: str, first: Batch) -> AsyncIterator[str]:
        """What is sent, beginning with `first`, until the task has ended or the process stops."""
        batch, loop = first, asyncio.get_running_loop()
        until = loop.time() + LONGEST_SECONDS
        with self._watcher.watch(task_id) as changed:
            yield f"retry: 1000\n\n{batch.text}"
            while not batch.over and not self._watcher.released and loop.time() < until:
                changed.clear()
                batch = await self.after(db, principal, task_id, batch.last)
                if batch.text:
                    yield batch.text
                if not batch.full and not batch.over:
                    if not await _set(changed, _SILENCE_SECONDS):
                        yield ": still here\n\n"
                    await asyncio.sleep(_PACE_SECONDS)


async def _set(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _read(db: Database, principal: Principal, task_id: str, number: int) -> Batch:
    with db.begin() as session:
        over = TaskStatus(find(session, Task, task_id, principal, "task").status) in TASK_TERMINAL  # before its events are
        events = scoped(select(TaskEvent).where(TaskEvent.task_id == task_id, TaskEvent.number > number), TaskEvent, principal)
        found = list(session.scalars(events.order_by(TaskEvent.number).limit(_BATCH)))
    full = len(found) == _BATCH
    last = found[-1].number if found else number
    return Batch("".join(_frame(event) for event in found), last, full, over and not full)


def _frame(event: TaskEvent) -> str:
    said = {"number": event.number, "type": event.kind, "created_at": event.created_at.isoformat(), "data": event.data}
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(said, separators=(',', ':'))}\n\n"
