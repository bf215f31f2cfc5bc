"""The queue in the plan in force: why each waiting task waits, where and when it is to start.

One packed row per tenant with waiting tasks, written with each plan: places move with every start, so a row per task would mean
one write per waiting task. Knows neither how a plan is made nor which changes are notified.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, cast

from sqlalchemy import Row, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.database.engine import among_ids
from service.scheduler.models import QueueStatus
from service.tasks.models import Task
from service.tasks.plan_status.waiting_changes import shows

_FAST = 1  # zlib's level: packs a plan of 1,000 waiting tasks to a twentieth in a few milliseconds
_UNPACKED = 16  # rows that a process caches unpacked

# for the resources of the tasks `ids`; reads nothing if none of them waits
OF_TASKS = select(QueueStatus.packed).where(
    QueueStatus.tenant_id.in_(select(Task.tenant_id).where(among_ids(Task.id), Task.status == TaskStatus.QUEUED))
)


@dataclass(frozen=True)
class Entry:
    """A task's entry in the plan in force, valid for its `fence`. `node` is the name of the planned node, `number` that of the
    first plan that said so: a part of the task's ETag."""

    fence: int
    number: int
    node: str
    text: bytes

    def waiting(self) -> dict[str, Any]:
        """As in tasks.waiting."""
        return cast(dict[str, Any], json.loads(self.text))


Entries = Mapping[str, Entry]  # by task
NONE: Entries = MappingProxyType({})


def publish(
    session: Session, at: datetime, tasks: Mapping[str, Task], told: Mapping[str, Mapping[str, Any]], untold: Iterable[str]
) -> None:
    """Replace the entries of the previous plan by what is `told` of one plan's waiting tasks, made at this moment.

    `untold` are tasks whose news is not notified yet. The caller's transaction holds the planner's lease.
    """
    number, before = int(at.timestamp() * 1e6), read_all(session)
    lines: dict[str, list[bytes]] = {}
    behind: dict[str, int] = {}
    for id, said in told.items():
        entry = entry_of(tasks[id], before)
        if entry is None or shows(entry.waiting(), said, at):
            entry = Entry(tasks[id].fence, number, said["node"] or "", json.dumps(said).encode())
        lines.setdefault(tasks[id].tenant_id, []).append(_line(id, entry))
    for id in untold:
        behind[tasks[id].tenant_id] = behind.get(tasks[id].tenant_id, 0) + 1
    rows = [
        {"tenant_id": tenant, "number": number, "untold": behind.get(tenant, 0), "packed": _pack(said)}
        for tenant, said in sorted(lines.items())
    ]
    session.execute(delete(QueueStatus).where(QueueStatus.tenant_id.not_in(list(lines))))
    if rows:
        given = insert(QueueStatus).values(rows)
        new = {name: given.excluded[name] for name in ("number", "untold", "packed")}
        same = (QueueStatus.packed == new["packed"]) & (QueueStatus.untold == new["untold"])
        session.execute(given.on_conflict_do_update(index_elements=[QueueStatus.tenant_id], set_=new, where=~same))


def _line(id: str, entry: Entry) -> bytes:
    return f"{id}\t{entry.fence}\t{entry.number}\t{entry.node}\t".encode() + entry.text


def _pack(lines: list[bytes]) -> bytes:
    return zlib.compress(b"\n".join(lines), _FAST)


def read_all(session: Session) -> Entries:
    """The entries of all tenants that the session may see."""
    found: dict[str, Entry] = {}
    for (packed,) in session.execute(select(QueueStatus.packed)):
        found |= unpack(packed)
    return found


def entries_of(rows: Iterable[Row[Any] | Any]) -> Entries:
    """The entries in the rows of OF_TASKS, by task."""
    found: Entries = NONE
    for row in rows:
        entries = unpack(row.packed)
        found = {**found, **entries} if found else entries  # a tenant has one row; only admins see several
    return found


@lru_cache(maxsize=_UNPACKED)
def unpack(packed: bytes) -> Entries:
    """Entries by task. Their JSON is parsed on demand."""
    found = {}
    for line in zlib.decompress(packed).split(b"\n"):
        id, fence, number, node, text = line.split(b"\t", 4)
        found[id.decode()] = Entry(int(fence), int(number), node.decode(), text)
    return MappingProxyType(found)


def entry_of(task: Task | Any, entries: Entries) -> Entry | None:
    """The task's entry, or None if its status or fence shows that it left the queue since. `task` has a Task's columns."""
    entry = entries.get(task.id)
    return entry if entry is not None and task.status == TaskStatus.QUEUED and entry.fence == task.fence else None


def waiting_of(task: Task | Any, entries: Entries) -> dict[str, Any] | None:
    """Why the task waits, its place and its interval, by the plan in force; else by its row. None also where that
    cannot be read."""
    entry = entry_of(task, entries)
    return (task.waiting or None) if entry is None else entry.waiting()
