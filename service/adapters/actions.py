"""Adapter actions: keep an upload, find and delete. Both our API and the OpenAI-compatible one call them. Knows no HTTP."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.messages.adapter_manifest import UploadedManifest
from contract.states import TASK_TERMINAL, TaskStatus
from service.adapters.models import Adapter
from service.database.engine import clock, new_id
from service.http.problems import Conflict, NotFound
from service.tasks.adapter_queries import deletion_of, undeleted_tasks_adapters
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import missing, scoped
from service.usage.quotas import admit_bytes

_OPEN = [status for status in TaskStatus if status not in TASK_TERMINAL]
_NAMED = 10  # tasks listed in a refusal


class AdapterInUse(Conflict):
    """Open tasks need the adapter: the one that trains it, or others that start from it. `tasks` lists the first 10."""

    code, title = "adapter_in_use", "Tasks still need the adapter"


class AdapterDeleted(NotFound):
    """The tenant deleted the adapter; `deleted_at` says when."""

    code, title = "adapter_deleted", "The adapter was deleted"

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterDeleted":
        stamp = adapter.deleted_at.isoformat() if adapter.deleted_at is not None else None
        return cls(f"Adapter {adapter.id} {deletion_of(adapter)}.", deleted_at=stamp)


def find_adapter(session: Session, principal: Principal, adapter_id: str, kept: bool = False) -> Adapter:
    """The caller's adapter; `kept`: it is not deleted before this transaction ends. Raises NotFound, or AdapterDeleted if the
    caller's tenant deleted it."""
    found = undeleted_tasks_adapters(principal).where(Adapter.id == adapter_id)
    adapter = session.scalar(found.with_for_update(read=True, of=Adapter) if kept else found)
    if adapter is None:
        raise missing("adapter", adapter_id)
    if adapter.deleted_at is not None:
        raise AdapterDeleted.of(adapter)
    return adapter


def keep_uploaded(session: Session, principal: Principal, name: str | None, manifest: UploadedManifest) -> Adapter:
    """Add an adapter to the caller's tenant whose files are stored. Raises QuotaExceeded."""
    size = sum(file.bytes for file in manifest.files)
    admit_bytes(session, principal, size)
    adapter = Adapter(
        id=new_id("adapter"),
        tenant_id=principal.tenant_id,
        name=name,
        bytes=size,
        manifest=manifest,
    )
    session.add(adapter)
    session.flush()
    session.refresh(adapter)
    return adapter


def winner_of(session: Session, principal: Principal, task: Task) -> Adapter:
    """The winner's adapter of a task that has a winner. Raises AdapterDeleted."""
    adapter = session.scalars(scoped(select(Adapter).where(Adapter.job_id == task.winner_job_id), Adapter, principal)).one()
    if adapter.deleted_at is not None:
        raise AdapterDeleted.of(adapter)
    return adapter


def delete(session: Session, principal: Principal, adapter_id: str) -> None:
    """Mark the adapter deleted; garbage collection removes its bytes. Its row stays, so that its task can show the deletion;
    that of an uploaded one goes with retention.

    Idempotent. Raises NotFound, or AdapterInUse while its own task or one that starts from it is open.
    """
    adapter = session.scalar(undeleted_tasks_adapters(principal).where(Adapter.id == adapter_id).with_for_update(of=Adapter))
    if adapter is None:
        raise missing("adapter", adapter_id)
    if adapter.deleted_at is not None:
        return
    _must_be_free(session, principal, adapter)
    if adapter.task_id is None:
        adapter.deleted_at = clock(session)
        return
    task = session.scalars(select(Task).where(Task.id == adapter.task_id).with_for_update()).one()
    adapter.deleted_at = clock(session)
    bump_version_and_notify(session, task)


def _must_be_free(session: Session, principal: Principal, adapter: Adapter) -> None:
    """Raise AdapterInUse if an open task needs the adapter. A task being submitted locks the adapter's row
    (tasks/submission/spec_checks.py), so none is missed."""
    open_ = scoped(select(Task.id).where(Task.status.in_(_OPEN)), Task, principal)
    if adapter.task_id is not None and session.scalar(open_.where(Task.id == adapter.task_id)) is not None:
        detail = f"Task {adapter.task_id}, which made the adapter, has not ended; cancel it or wait for its end."
        raise AdapterInUse(detail, tasks=[adapter.task_id])
    starts = Task.spec["warm_start"]["adapter_id"].astext == adapter.id
    tasks = list(session.scalars(open_.where(starts).order_by(Task.id)))
    if tasks:
        more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
        starting, them = ("starts", "it or wait for its") if len(tasks) == 1 else ("start", "them or wait for their")
        detail = f"{', '.join(tasks[:_NAMED])}{more} {starting} from the adapter; cancel {them} end."
        raise AdapterInUse(detail, tasks=tasks[:_NAMED])
