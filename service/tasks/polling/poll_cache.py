"""Answers polls of a task from a cache by version: whether it has changed, and its current JSON.

Concurrent polls share one read, which begins after the last of them arrived (request_coalescer.py). An answer is cached until
the task's ETag changes. Runs on the event loop alone, so a poll waits for no thread. Knows no HTTP beyond ETags.
"""

import asyncio
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import BigInteger, bindparam, case, select

from contract.states import TASK_TERMINAL
from service.database.async_reader import AsyncReader
from service.database.engine import Database, among_ids
from service.database.prepared_statements import PreparedStatement
from service.scheduler.models import QueueStatus
from service.storage.downloads import matches
from service.tasks.models import Task
from service.tasks.plan_status.queue_status import NONE, Entries, Entry, entry_of, unpack
from service.tasks.polling.long_polling import ChangeListener
from service.tasks.resource import QUEUE, RELATED_READS, RelatedRows, TaskResource
from service.tenants.api_keys import Principal
from service.tenants.request_coalescer import RequestCoalescer
from service.tenants.tenant_scope import missing, scoped_by_parameter, tenant_parameter

_KEPT_BYTES = 16 * 2**20  # of cached answers
_ENTRY_BYTES = 500  # overhead of an entry beyond its text
_APART_SECONDS = 0.02  # minimum between two reads of a tenant; polls that arrive meanwhile share the next read
_MOST_LOADED = 25  # tasks per read
_MOST_TENANTS = 10_000  # tenants whose changed tasks and queues are remembered
_SLICE_SECONDS = 0.005  # of rendering, after which other coroutines run

_NUL = "\0"  # Postgres refuses NUL in text: one such id would fail the read that all concurrent polls share
Found = TypeVar("Found")

_ASKED = PreparedStatement(
    scoped_by_parameter(
        select(Task.id, Task.version, Task.status, Task.fence).where(among_ids(Task.id), Task.deleted_at.is_(None)), Task
    )
)
_QUEUE_IF_NEW = PreparedStatement(  # `packed` is null if the process already has the plan with the number `plan`
    scoped_by_parameter(
        select(QueueStatus.number, case((QueueStatus.number != bindparam("plan", type_=BigInteger), QueueStatus.packed))),
        QueueStatus,
    )
)
_COLUMNS = [column for column in Task.__table__.c if column.name != "base_scores"]  # long, and part of no resource
_WHOLE = [
    *(
        PreparedStatement(scoped_by_parameter(statement, Task))
        for statement in (select(*_COLUMNS).where(among_ids(Task.id), Task.deleted_at.is_(None)), *RELATED_READS)
    ),
    PreparedStatement(scoped_by_parameter(QUEUE, QueueStatus)),
]
_OF_PLAN = re.compile(r'\.\d+"')


def etag_of(version: int, entry: Entry | None = None) -> str:
    """The ETag of a task at `version`; for a waiting task, with the number of the first plan that gave it its current entry."""
    return f'"{version}"' if entry is None else f'"{version}.{entry.number}"'


@dataclass(frozen=True)
class Version:
    """`etag` changes with the task's resource; `number` only with changes that wake a long poll."""

    etag: str
    number: int
    ended: bool

    def is_news(self, known: str) -> bool:
        """Whether anything but the task's place in the queue has changed since the ETag header `known`."""
        return not matches(_OF_PLAN.sub('"', known), etag_of(self.number))


@dataclass
class Answer:
    """A tenant's task as JSON."""

    tenant_id: str
    etag: str
    text: bytes
    polled: bool = False  # whether a client got it; prefetched answers may never be asked for


class PollCache:
    """Caches answers; `change_listener` reports changed tasks. Versions and whole tasks use separate readers, so that a version
    never waits for the longer read."""

    def __init__(self, change_listener: ChangeListener, versions: AsyncReader, loads: AsyncReader) -> None:
        self._listener, self._version_line, self._load_line = change_listener, versions, loads
        self._versions = RequestCoalescer(self._look, min_interval_seconds=_APART_SECONDS, semaphore=versions.semaphore)
        self._loads = RequestCoalescer(
            self._load, min_interval_seconds=_APART_SECONDS, max_group_size=_MOST_LOADED, semaphore=loads.semaphore
        )
        self._kept: OrderedDict[str, Answer] = OrderedDict()  # by task, least recently used first
        self._bytes = 0
        self._queues: dict[str, tuple[int, Entries]] = {}  # by tenant: the newest plan's number, and its entries
        self._changed: dict[str, set[str]] = defaultdict(set)  # by tenant: tasks polled before they changed, to prefetch
        change_listener.on_change(self._forget)

    async def close(self) -> None:
        """Close the connections; a later poll opens them again."""
        await self._version_line.close()
        await self._load_line.close()

    async def version(self, db: Database, principal: Principal, task_id: str) -> Version:
        """The task's current version, read in the calling tenant's `db`. Raises NotFound if the task is not the caller's."""
        return await _found(self._versions, db, principal, task_id)

    async def changed(self, db: Database, principal: Principal, task_id: str, known: str | None, wait: float) -> Version:
        """Long poll: the task's version once it has news since the ETag header `known` (None: since now), has ended, or after
        `wait` seconds. A queue that only moved on wakes no poll; the next answer shows it. Raises NotFound."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        with self._listener.watch(task_id) as changed:
            version = await self.version(db, principal, task_id)
            seen = known if known is not None else version.etag
            while not version.is_news(seen) and not version.ended and not self._listener.released:
                try:
                    await asyncio.wait_for(changed.wait(), until - loop.time())
                except TimeoutError:
                    break
                changed.clear()
                version = await self.version(db, principal, task_id)
        return version

    async def answer(self, db: Database, principal: Principal, task_id: str, version: Version | None = None) -> Answer:
        """The task's JSON, not older than `version` (None: than this call). Raises NotFound."""
        answer = self._kept.get(task_id)
        if answer is not None and answer.tenant_id == principal.tenant_id:
            if version is None:
                version = await self.version(db, principal, task_id)
            if answer.etag == version.etag:
                if task_id in self._kept:
                    self._kept.move_to_end(task_id)
                answer.polled = True
                return answer
        answer = await _found(self._loads, db, principal, task_id)
        answer.polled = True
        return answer

    async def _look(self, _: Database, principal: Principal, ids: list[str]) -> dict[str, Version]:
        tenant_id = principal.tenant_id
        known, kept = self._queues.get(tenant_id, (0, NONE))
        entries = NONE
        asked = tenant_parameter(principal) | {"ids": ids, "plan": known}
        found, queue = await self._version_line.look(tenant_id, [_ASKED, _QUEUE_IF_NEW], asked)
        for number, packed in await queue.fetchall():
            if len(self._queues) >= _MOST_TENANTS:
                self._queues.clear()
            entries = kept if packed is None else unpack(packed)
            self._queues[tenant_id] = number, entries
        return {
            row.id: Version(etag_of(row.version, entry_of(row, entries)), row.version, row.status in TASK_TERMINAL)
            for row in await found.fetchall()
        }

    async def _load(self, _: Database, principal: Principal, ids: list[str]) -> dict[str, Answer]:
        """Load these tasks, and prefetch other polled ones that have changed: one plan changes many, and all will be polled."""
        tenant_id, loop, answers = principal.tenant_id, asyncio.get_running_loop(), {}
        all_ids = [*ids, *self._take_changed(tenant_id, ids)]
        tasks, *beside = await self._load_line.look(tenant_id, _WHOLE, tenant_parameter(principal) | {"ids": all_ids})
        made, until = RelatedRows(*[await found.fetchall() for found in beside]), loop.time() + _SLICE_SECONDS
        async for row in tasks:
            task = made.of(row)
            etag = etag_of(task.version, entry_of(row, made.entries))
            answers[task.id] = Answer(tenant_id, etag, task.model_dump_json().encode())
            if _lasts(task):
                self._keep(task.id, answers[task.id])
            if loop.time() > until:
                await asyncio.sleep(0)
                until = loop.time() + _SLICE_SECONDS
        return answers

    def _take_changed(self, tenant_id: str, asked: list[str]) -> list[str]:
        """Removes and returns the tenant's changed tasks that still fit into this read; drops the rest."""
        changed = self._changed.pop(tenant_id, set()).difference(asked)
        return list(changed)[: _MOST_LOADED - len(asked)]

    def _keep(self, task_id: str, answer: Answer) -> None:
        self._drop(task_id)
        self._kept[task_id] = answer
        self._bytes += _size(answer)
        while self._bytes > _KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, task_id: str) -> Answer | None:
        old = self._kept.pop(task_id, None)
        self._bytes -= _size(old) if old is not None else 0
        return old

    def _forget(self, task_ids: Iterable[str]) -> None:
        """Drop the cached answers of changed tasks: their next poll loads the task without asking for its version first."""
        for task_id in task_ids:
            old = self._drop(task_id)
            if len(self._changed) >= _MOST_TENANTS:
                self._changed.clear()  # tasks that are not prefetched are loaded when a client asks
            if old is not None and old.polled and len(changed := self._changed[old.tenant_id]) < _MOST_LOADED:
                changed.add(task_id)


async def _found(reads: RequestCoalescer[str, Found], db: Database, principal: Principal, task_id: str) -> Found:
    found = await reads.submit(db, principal, task_id) if _NUL not in task_id else None
    if found is None:
        raise missing("task", task_id)
    return found


def _lasts(task: TaskResource) -> bool:
    """Whether the resource stays the same until the ETag changes: acknowledging a placement does not raise the version."""
    placement = task.placement
    return placement is None or placement.acknowledged_at is not None or placement.ended_at is not None


def _size(answer: Answer) -> int:
    return len(answer.text) + _ENTRY_BYTES
