"""Answers polls of a task from a cache by version: whether it has changed, and its current JSON.

Concurrent polls share one read, which begins after the last of them arrived (request_coalescer.py): versions those of all
tenants, whole tasks those of one. An answer is cached until the task's ETag changes. Runs on the event loop alone, so a poll
waits for no thread. Knows no HTTP beyond ETags.
"""

import asyncio
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import to_json
from sqlalchemy import select, text

from contract.states import TASK_TERMINAL
from service.database.async_reader import AsyncReader
from service.database.engine import among_ids
from service.database.prepared_statements import PreparedStatement
from service.scheduler.models import QueueStatus
from service.storage.downloads import matches
from service.tasks.damaged_rows import CHECKED
from service.tasks.models import Task
from service.tasks.plan_status.queue_status import NONE, Entries, Entry, entry_of, unpack
from service.tasks.polling.long_polling import ChangeListener
from service.tasks.resource import QUEUE, RELATED_READS, RelatedRows, TaskResource
from service.tenants.api_keys import Principal
from service.tenants.request_coalescer import RequestCoalescer
from service.tenants.tenant_scope import missing, scoped_by_parameter

_KEPT_BYTES = 16 * 2**20  # of cached answers
_ENTRY_BYTES = 500  # overhead of an entry beyond its text
_APART_SECONDS = 0.02  # minimum between two reads; polls that arrive meanwhile share the next one
_MOST_LOADED = 25  # whole tasks per read
_MOST_VERSIONS = 500  # per read: a tenant that asks for more takes turns with the others
_EVERYBODY = "everybody"  # versions are read for all tenants together
_MOST_TENANTS = 10_000  # tenants whose changed tasks and queues are remembered
_SLICE_SECONDS = 0.005  # of rendering, after which other coroutines run

_NUL = "\0"  # Postgres refuses NUL in text: one such id would fail the read that all concurrent polls share
_LONGEST = 40  # characters of an id
_OfTenant = tuple[str, str]  # a tenant, and the id of the task that it asks for
Asked = TypeVar("Asked", str, _OfTenant)
Found = TypeVar("Found")

_VERSIONS = PreparedStatement(  # under each tenant's row-level security in turn (migration `versions`)
    text("SELECT * FROM task_versions(CAST(:tenants AS text[]), CAST(:ids AS text[]), CAST(:plans AS bigint[]))")
)
_COLUMNS = [column for column in Task.__table__.c if column.name != "base_scores"]  # long, and part of no resource
_WHOLE = [
    *(
        PreparedStatement(scoped_by_parameter(statement, Task))
        for statement in (select(*_COLUMNS).where(among_ids(Task.id), Task.deleted_at.is_(None)), *RELATED_READS)
    ),
    PreparedStatement(scoped_by_parameter(QUEUE, QueueStatus)),
]
_members = list(TaskResource.model_fields)
_BEHIND_WAITING = set(_members[_members.index("waiting") + 1 :])
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
    entry: Entry | None = None  # of a waiting task in the plan in force

    def is_news(self, known: str) -> bool:
        """Whether anything but the task's place in the queue has changed since the ETag header `known`."""
        return not matches(_OF_PLAN.sub('"', known), etag_of(self.number))


@dataclass
class CachedAnswer:
    """A tenant's task as JSON. `waits` are the bounds of its member `waiting` in the text, if the plan in force said it."""

    tenant_id: str
    etag: str
    text: bytes
    number: int
    waits: tuple[int, int] | None = None
    polled: bool = False  # whether a client got it; prefetched answers may never be asked for

    @classmethod
    def of(cls, tenant_id: str, task: TaskResource, entry: Entry | None) -> "CachedAnswer":
        """The answer for a task that was read with its entry in the plan."""
        text, etag = task.model_dump_json().encode(), etag_of(task.version, entry)
        if entry is None:
            return cls(tenant_id, etag, text, task.version)
        waiting, behind = to_json(task.waiting), task.model_dump_json(include=_BEHIND_WAITING).encode()
        ends = len(text) - len(behind)
        return cls(tenant_id, etag, text, task.version, (ends - len(waiting), ends))

    def moved(self, version: Version) -> "CachedAnswer | None":
        """The same task at another place in the queue; None if `version` is not this one with another entry. A plan moves most
        waiting tasks, and nothing else of them changes, so nothing has to be read."""
        if version.number != self.number or version.entry is None or self.waits is None:
            return None
        begins, ends = self.waits
        waiting = to_json(version.entry.waiting())
        text = self.text[:begins] + waiting + self.text[ends:]
        return CachedAnswer(self.tenant_id, version.etag, text, self.number, (begins, begins + len(waiting)), self.polled)


class PollCache:
    """Caches answers; `change_listener` reports changed tasks. Versions and whole tasks use separate readers, so that a version
    never waits for the longer read."""

    def __init__(self, change_listener: ChangeListener, versions: AsyncReader, loads: AsyncReader) -> None:
        self._listener, self._version_line, self._load_line = change_listener, versions, loads
        self._versions = RequestCoalescer(
            self._look, min_interval_seconds=_APART_SECONDS, max_group_size=_MOST_VERSIONS, semaphore=versions.semaphore
        )
        self._loads = RequestCoalescer(
            self._load, min_interval_seconds=_APART_SECONDS, max_group_size=_MOST_LOADED, semaphore=loads.semaphore
        )
        self._kept: OrderedDict[str, CachedAnswer] = OrderedDict()  # by task, least recently used first
        self._bytes = 0
        self._queues: dict[str, tuple[int, Entries]] = {}  # by tenant: the newest plan's number, and its entries
        self._changed: dict[str, set[str]] = defaultdict(set)  # by tenant: tasks polled before they changed, to prefetch
        change_listener.on_change(self._forget)

    async def close(self) -> None:
        """Close the connections; a later poll opens them again."""
        await self._version_line.close()
        await self._load_line.close()

    async def version(self, principal: Principal, task_id: str) -> Version:
        """The task's current version. Raises NotFound if the task is not the calling tenant's."""
        return await _found(self._versions, _EVERYBODY, (principal.tenant_id, task_id), task_id)

    async def changed(self, principal: Principal, task_id: str, known: str | None, wait: float) -> Version:
        """Long poll: the task's version once it has news since the ETag header `known` (None: since now), has ended, or after
        `wait` seconds. A queue that only moved on wakes no poll; the next answer shows it. Raises NotFound."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        with self._listener.watch(task_id) as changed:
            version = await self.version(principal, task_id)
            seen = known if known is not None else version.etag
            while not version.is_news(seen) and not version.ended and not self._listener.released:
                try:
                    await asyncio.wait_for(changed.wait(), until - loop.time())
                except TimeoutError:
                    break
                changed.clear()
                version = await self.version(principal, task_id)
        return version

    async def answer(self, principal: Principal, task_id: str, version: Version | None = None) -> CachedAnswer:
        """The task's JSON, not older than `version` (None: than this call). Raises NotFound."""
        answer = self._kept.get(task_id)
        if answer is not None and answer.tenant_id == principal.tenant_id:
            if version is None:
                version = await self.version(principal, task_id)
            if answer.etag == version.etag:
                if task_id in self._kept:
                    self._kept.move_to_end(task_id)
                answer.polled = True
                return answer
            if (moved := answer.moved(version)) is not None:
                if self._kept.get(task_id) is answer:
                    self._keep(task_id, moved)
                moved.polled = True
                return moved
        answer = await _found(self._loads, principal.tenant_id, task_id, task_id)
        answer.polled = True
        return answer

    async def _look(self, _: str, asked: list[_OfTenant]) -> dict[_OfTenant, Version]:
        known = {tenant_id: self._queues.get(tenant_id, (0, NONE)) for tenant_id, _ in asked}
        tenants, ids = zip(*asked, strict=True)
        given = {"tenants": list(tenants), "ids": list(ids), "plans": [known[tenant_id][0] for tenant_id in tenants]}
        rows = await (await self._version_line.look_alone(_VERSIONS, given)).fetchall()
        entries = {row.tenant_id: self._entries(row, known[row.tenant_id][1]) for row in rows if row.id is None}
        found = {}
        for row in rows:
            if row.id is not None:
                entry = entry_of(row, entries.get(row.tenant_id, NONE))
                ended = row.status in TASK_TERMINAL
                found[row.tenant_id, row.id] = Version(etag_of(row.version, entry), row.version, ended, entry)
        return found

    def _entries(self, queue: Any, known: Entries) -> Entries:
        """The entries of a tenant's queue row; its `packed` is null if they are the `known` ones."""
        entries = known if queue.packed is None else unpack(queue.packed)
        if len(self._queues) >= _MOST_TENANTS:
            self._queues.clear()
        self._queues[queue.tenant_id] = queue.plan, entries
        return entries

    async def _load(self, tenant_id: str, ids: list[str]) -> dict[str, CachedAnswer]:
        """Load these tasks, and prefetch other polled ones that have changed: one plan changes many, and all will be polled."""
        loop, answers = asyncio.get_running_loop(), {}
        all_ids = [*ids, *self._take_changed(tenant_id, ids)]
        tasks, *beside = await self._load_line.look(tenant_id, _WHOLE, {"tenant": tenant_id, "ids": all_ids})
        made, until = RelatedRows(*[await found.fetchall() for found in beside]), loop.time() + _SLICE_SECONDS
        async for row in tasks:
            task = made.of(row._replace(**{name: kind.read(getattr(row, name)) for name, kind in CHECKED.items()}))
            answers[task.id] = CachedAnswer.of(tenant_id, task, entry_of(row, made.entries))
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

    def _keep(self, task_id: str, answer: CachedAnswer) -> None:
        self._drop(task_id)
        self._kept[task_id] = answer
        self._bytes += _size(answer)
        while self._bytes > _KEPT_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, task_id: str) -> CachedAnswer | None:
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


async def _found(reads: RequestCoalescer[str, Asked, Found], owner: str, asked: Asked, task_id: str) -> Found:
    found = await reads.submit(owner, asked) if len(task_id) <= _LONGEST and _NUL not in task_id else None
    if found is None:
        raise missing("task", task_id)
    return found


def _lasts(task: TaskResource) -> bool:
    """Whether the resource stays the same until the ETag changes: acknowledging a placement does not raise the version."""
    placement = task.placement
    return placement is None or placement.acknowledged_at is not None or placement.ended_at is not None


def _size(answer: CachedAnswer) -> int:
    return len(answer.text) + _ENTRY_BYTES
