"""A task for those who ask again and again: whether it has changed, and how it looks.

All who ask at the same time are answered from one read of versions, begun after the last of them came, so no answer is older
than its question. How a task looks is kept until its version is another. Only the event loop may call this; a request that
waits holds neither a thread nor a database connection. Knows no HTTP but what an ETag is.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from sqlalchemy import ARRAY, String, any_, bindparam, select
from starlette.concurrency import run_in_threadpool

from contract.states import TASK_TERMINAL
from service.db import Database
from service.downloads import matches
from service.tasks.models import Task
from service.tasks.resource import render
from service.tasks.watch import Watcher
from service.tenants.keys import Principal
from service.tenants.scope import find, missing, scoped_when_asked, whose

_KEPT_BYTES = 16 * 2**20  # of answers
_ENTRY_BYTES = 500  # what an answer takes beside its text
_APART_SECONDS = 0.02  # between a tenant's reads: so long at most a question waits for others to share its read
_MOST = 10_000  # tenants whose last read is remembered

_LISTED = Task.id == any_(bindparam("ids", type_=ARRAY(String)))
_ASKED = scoped_when_asked(select(Task.id, Task.version, Task.status).where(_LISTED, Task.deleted_at.is_(None)), Task)

Ids = tuple[str, str]  # tenant, task


def etag_of(version: int) -> str:
    """The ETag of a task of this version."""
    return f'"{version}"'


@dataclass(frozen=True)
class Version:
    """What tells whether a task has changed."""

    etag: str
    ended: bool


@dataclass(frozen=True)
class Answer:
    """A task as JSON. `lasting`: it looks like this until its version is another."""

    etag: str
    text: bytes
    lasting: bool


@dataclass(frozen=True)
class _Gathering:
    """A read of versions that has not begun: whoever asks joins it."""

    ids: set[str]
    read: asyncio.Task[dict[str, Version]]


class Polls:
    """`watcher` tells when a task has changed."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._gathering: dict[str, _Gathering] = {}  # by tenant
        self._reading: dict[str, asyncio.Task[dict[str, Version]]] = {}
        self._began: dict[str, float] = {}  # when the last read of a tenant did
        self._alone: set[Ids] = set()  # loaded without asking for the version first
        self._loads: dict[tuple[Ids, str], asyncio.Task[Answer]] = {}
        self._kept: OrderedDict[Ids, Answer] = OrderedDict()
        self._bytes = 0

    async def version(self, db: Database, principal: Principal, task_id: str) -> Version:
        """The task's version now. Raises NotFound where the task is not the caller's, whose `db` it is."""
        tenant = principal.tenant_id
        gathering = self._gathering.get(tenant)
        if gathering is None:
            ids: set[str] = set()
            gathering = _Gathering(ids, asyncio.ensure_future(self._read(db, principal, ids, self._reading.get(tenant))))
            self._gathering[tenant] = gathering
        gathering.ids.add(task_id)
        found = (await asyncio.shield(gathering.read)).get(task_id)
        if found is None:
            raise missing("task", task_id)
        return found

    async def changed(self, db: Database, principal: Principal, task_id: str, known: str | None, wait: float) -> Version:
        """The task's version once it is another than in the header `known` (None: than it is now), has ended, or `wait`
        seconds have passed. Raises NotFound."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        with self._watcher.watch(task_id) as changed:
            version = await self.version(db, principal, task_id)
            seen = known if known is not None else version.etag
            while matches(seen, version.etag) and not version.ended and not self._watcher.released:
                try:
                    await asyncio.wait_for(changed.wait(), until - loop.time())
                except TimeoutError:
                    break
                changed.clear()
                version = await self.version(db, principal, task_id)
        return version

    async def answer(self, db: Database, principal: Principal, task_id: str, version: Version | None = None) -> Answer:
        """The task, not older than `version` (None: than this call). Raises NotFound."""
        ids = principal.tenant_id, task_id
        kept = self._kept.get(ids)
        if kept is None and version is None and ids not in self._alone:
            self._alone.add(ids)  # whoever asks meanwhile shares what his version looks like
            try:
                return self._keep(ids, await run_in_threadpool(_load, db, principal, task_id))
            finally:
                self._alone.discard(ids)
        if version is None:
            version = await self.version(db, principal, task_id)
        if kept is not None and kept.etag == version.etag:
            self._kept.move_to_end(ids)
            return kept
        load = self._loads.get((ids, version.etag))
        if load is None:
            load = asyncio.ensure_future(run_in_threadpool(_load, db, principal, task_id))
            self._loads[ids, version.etag] = load
            load.add_done_callback(lambda _: self._loads.pop((ids, version.etag)))
        return self._keep(ids, await asyncio.shield(load))

    async def _read(
        self, db: Database, principal: Principal, ids: set[str], before: asyncio.Task[dict[str, Version]] | None
    ) -> dict[str, Version]:
        """Begin once the read before this one has ended, and not at once after it began, for all who have asked by then."""
        if before is not None:
            await asyncio.wait([before])
        tenant, loop = principal.tenant_id, asyncio.get_running_loop()
        if (early := self._began.get(tenant, 0.0) + _APART_SECONDS - loop.time()) > 0:
            await asyncio.sleep(early)
        if len(self._began) >= _MOST:
            self._began.clear()
        self._began[tenant] = loop.time()
        self._reading[tenant] = self._gathering.pop(tenant).read
        try:
            return await run_in_threadpool(_versions, db, principal, frozenset(ids))
        finally:
            del self._reading[tenant]

    def _keep(self, ids: Ids, answer: Answer) -> Answer:
        old = self._kept.pop(ids, None)
        self._bytes -= _size(old) if old is not None else 0
        if answer.lasting:
            self._kept[ids] = answer
            self._bytes += _size(answer)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= _size(self._kept.popitem(last=False)[1])
        return answer


def _versions(db: Database, principal: Principal, ids: frozenset[str]) -> dict[str, Version]:
    found = db.look(_ASKED, whose(principal) | {"ids": list(ids)})
    return {row.id: Version(etag_of(row.version), row.status in TASK_TERMINAL) for row in found}


def _load(db: Database, principal: Principal, task_id: str) -> Answer:
    with db.begin() as session:
        (task,) = render(session, [find(session, Task, task_id, principal, "task")])
    placement = task.placement
    # that a node has the task is written without a new version
    lasting = placement is None or placement.acknowledged_at is not None or placement.ended_at is not None
    return Answer(etag_of(task.version), task.model_dump_json().encode(), lasting)


def _size(answer: Answer) -> int:
    return len(answer.text) + _ENTRY_BYTES
