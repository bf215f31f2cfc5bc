"""File actions: keep, find, pin, delete. Both our API and the OpenAI-compatible one call them. Knows no HTTP."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import CTE, Select, exists, func, or_, select, union
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL, TaskStatus
from service.database.engine import among_ids, clock, new_id
from service.files.dataset_intake import CheckedDataSet
from service.files.models import File
from service.http.problems import Conflict
from service.tasks.models import Task, reads_file
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import missing, scoped, scoped_by_parameter, tenant_parameter
from service.usage.quotas import admit_bytes

_OPEN = [status for status in TaskStatus if status not in TASK_TERMINAL]
_NAMED = 10  # tasks that a refusal lists

_THERE = select(File).where(File.deleted_at.is_(None), or_(File.expires_at.is_(None), File.expires_at > func.clock_timestamp()))
# the caller's existing files among `ids`, locked against deletion until the transaction ends
PINNED = scoped_by_parameter(_THERE.where(among_ids(File.id)), File).order_by(File.id).with_for_update(read=True, of=File)


class FileInUse(Conflict):
    """Open tasks still need the file. `tasks` lists the first 10."""

    code, title = "file_in_use", "Tasks still need the file"


def keep(
    session: Session,
    principal: Principal,
    name: str,
    data: CheckedDataSet,
    lasts: timedelta | None = None,
    id: str | None = None,
) -> File:
    """Add a file to the caller's tenant for a stored data set. `lasts`: until it expires, from its creation; `id`: of its
    import. Raises QuotaExceeded."""
    admit_bytes(session, principal, data.stored.bytes)
    now = clock(session)
    file = File(
        id=id or new_id("file"),
        tenant_id=principal.tenant_id,
        name=name,
        format=data.format,
        bytes=data.stored.bytes,
        rows=data.rows,
        sha256=data.stored.sha256,
        prompt_bytes=data.prompt_bytes,
        tools_line=data.tools_line,
        created_at=now,
        expires_at=now + lasts if lasts is not None else None,
    )
    session.add(file)
    session.flush()
    session.refresh(file)
    return file


def files_of(principal: Principal, unused: bool | None = None) -> Select[File]:
    """The caller's files that are neither deleted nor expired. `unused`: only those that no task names, or only the others."""
    files = scoped(_THERE, File, principal)
    if unused is None:
        return files
    named = _named_files(principal)
    if unused:
        return files.where(~exists().where(named.c.id == File.id))
    return files.join(named, named.c.id == File.id)  # Postgres expects few different ids of a CTE in EXISTS, and probes


def _named_files(principal: Principal) -> CTE:
    """Ids of the files that the caller's undeleted tasks name, each index read once: a probe for every file would be planned as
    a scan of all tasks where most of them name the same few files."""
    columns = (Task.train_file_id, Task.validation_file_id, Task.prompts_file_id)
    ids = (scoped(select(column.label("id")), Task, principal).where(column.is_not(None)) for column in columns)
    return union(*(one.where(Task.deleted_at.is_(None)).distinct() for one in ids)).cte("named").prefix_with("MATERIALIZED")


def find_file(session: Session, principal: Principal, file_id: str) -> File:
    """The caller's file. Raises NotFound."""
    file = session.scalar(files_of(principal).where(File.id == file_id))
    if file is None:
        raise missing("file", file_id)
    return file


def pin(session: Session, principal: Principal, file_ids: Sequence[str]) -> dict[str, File]:
    """The existing files among `file_ids`, by id, locked against deletion until the transaction ends."""
    return {file.id: file for file in session.scalars(PINNED, tenant_parameter(principal) | {"ids": list(file_ids)})}


def delete(session: Session, principal: Principal, file_id: str) -> None:
    """Mark the file deleted; garbage collection removes its bytes. Raises NotFound, or FileInUse if an open task needs it."""
    file = session.scalar(files_of(principal).where(File.id == file_id).with_for_update())
    if file is None:
        raise missing("file", file_id)
    needs = reads_file(file_id)
    tasks = list(
        session.scalars(scoped(select(Task.id).where(needs, Task.status.in_(_OPEN)).order_by(Task.id), Task, principal))
    )
    if tasks:
        more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
        named = ", ".join(tasks[:_NAMED]) + more
        raise FileInUse(f"The file is needed by {named}; cancel them or wait for their end.", tasks=tasks[:_NAMED])
    file.deleted_at = session.scalars(select(func.clock_timestamp())).one()
