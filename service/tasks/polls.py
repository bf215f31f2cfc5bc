"""A task for those who ask again and again: whether it has changed, and how it looks.

All who ask at the same time are answered from one read, begun after the last of them came (together.py). How a task looks is
kept until its version is another. Only the event loop may call this; a request that waits holds neither a thread nor a
database connection. Knows no HTTP but what an ETag is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from contract.states import TASK_TERMINAL
from service.db import Database, among_ids
from service.downloads import matches
from service.line import Line
from service.plain import Plain
from service.tasks.models import Task
from service.tasks.resource import TaskResource, render
from service.tasks.together import Together, in_thread
from service.tasks.watch import Watcher
from service.tenants.keys import Principal
from service.tenants.scope import missing, scoped_when_asked, whose

_KEPT_BYTES = 16 * 2**20  # of answers
_ENTRY_BYTES = 500  # what an answer takes beside its text
_APART_SECONDS = 0.02  # between a tenant's reads: so long at most a question waits for others to share its read

_ASKED = Plain(
    scoped_when_asked(select(Task.id, Task.version, Task.status).where(among_ids(Task.id), Task.deleted_at.is_(None)), Task)
)
_WHOLE = scoped_when_asked(select(Task).where(among_ids(Task.id), Task.deleted_at.is_(None)), Task)


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
    """A task as JSON, of its tenant; without a text, one that has changed since. `lasting`: it looks like this until its
    version is another."""

    tenant_id: str
    etag: str
    text: bytes
    lasting: bool


class Polls:
    """`watcher` tells when a task has changed, `line` asks for its version."""

    def __init__(self, watcher: Watcher, line: Line) -> None:
        self._watcher, self._line = watcher, line
        self._versions = Together(self._look, apart=_APART_SECONDS, turn=line.turn)
        self._loads = Together(in_thread(_load))
        self._changes = Together(in_thread(_load), gather=_APART_SECONDS)  # a plan changes many tasks at once
        self._kept: OrderedDict[str, Answer] = OrderedDict()  # by task
        self._bytes = 0
        watcher.tell(self._forget)

    async def version(self, db: Database, principal: Principal, task_id: str) -> Version:
        """The task's version now. Raises NotFound where the task is not the caller's, whose `db` it is."""
        found = await self._versions.ask(db, principal, task_id)
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
        kept = self._kept.get(task_id)
        mine = kept is not None and kept.tenant_id == principal.tenant_id
        if kept is not None and mine and kept.text:
            if version is None:
                version = await self.version(db, principal, task_id)
            if kept.etag == version.etag:
                if task_id in self._kept:
                    self._kept.move_to_end(task_id)
                return kept
        found = await (self._changes if mine else self._loads).ask(db, principal, task_id)
        if found is None:
            raise missing("task", task_id)
        return self._keep(task_id, found)

    async def _look(self, _: Database, principal: Principal, ids: list[str]) -> dict[str, Version]:
        found = await self._line.look(principal.tenant_id, _ASKED, whose(principal) | {"ids": ids})
        return {id: Version(etag_of(version), status in TASK_TERMINAL) for id, version, status in found}

    def _keep(self, task_id: str, answer: Answer) -> Answer:
        self._drop(task_id)
        if answer.lasting:
            self._kept[task_id] = answer
            self._bytes += _size(answer)
        while self._bytes > _KEPT_BYTES:
            self._drop(next(iter(self._kept)))
        return answer

    def _drop(self, task_id: str) -> None:
        old = self._kept.pop(task_id, None)
        self._bytes -= _size(old) if old is not None else 0

    def _forget(self, task_ids: Iterable[str]) -> None:
        """Leave no more of them than that they are polled: of what is known to have changed nobody need ask the version."""
        for task_id in task_ids:
            old = self._kept.get(task_id)
            if old is not None:
                self._keep(task_id, Answer(old.tenant_id, "", b"", lasting=True))


def _load(db: Database, principal: Principal, ids: list[str]) -> dict[str, Answer]:
    with db.begin() as session:
        tasks = render(session, session.scalars(_WHOLE, whose(principal) | {"ids": ids}).all())
    return {
        task.id: Answer(principal.tenant_id, etag_of(task.version), task.model_dump_json().encode(), _lasts(task))
        for task in tasks
    }


def _lasts(task: TaskResource) -> bool:
    """That a node has the task is written without a new version."""
    placement = task.placement
    return placement is None or placement.acknowledged_at is not None or placement.ended_at is not None


def _size(answer: Answer) -> int:
    return len(answer.text) + _ENTRY_BYTES
