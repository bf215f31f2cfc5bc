"""Tenant quotas: current use is counted from rows at each check, monthly tokens by a counter. Knows no HTTP.

The tenant's row holds the limits; null means no limit. The planner enforces the GPU quota: a task beyond it waits.
"""

from sqlalchemy import bindparam, func, literal_column, select, text
from sqlalchemy.orm import Session

from contract.batch_spec import MOST_TASKS
from contract.states import TaskStatus
from service.adapters.models import Adapter
from service.database.checked_json import number_in
from service.database.prepared_statements import PreparedStatement
from service.files.models import ChunkedUpload, File, FileImport
from service.http.problems import Forbidden
from service.merges.models import MergedModel
from service.tasks.models import TASK_IS_OPEN, Job, Task
from service.tenants.api_keys import Principal
from service.tenants.models import Tenant
from service.tenants.tenant_scope import scoped, scoped_by_parameter, tenant_parameter
from service.usage.usage_queries import month_of, used_tokens

_WAITING = (TaskStatus.VALIDATING, TaskStatus.QUEUED, TaskStatus.PAUSED)
MAX_SHARED_TASKS = 16  # most tasks that one transaction creates without the tenant's lock; the coalescer's group size too
_MAX_API_PROCESSES = 16  # the bound of settings.api_processes
# tasks that may be created at once outside the lock (one transaction a process), plus one batch under it
_NEAR = _MAX_API_PROCESSES * MAX_SHARED_TASKS + MOST_TASKS

_MOST_BYTES = 2**50  # of a checkpoint; what says more is damaged, and its number is none to count
_FEWER_BYTES = "delete files, adapters and merged models that nobody needs any more"

_IS_WAITING = Task.status.in_([literal_column(f"'{status}'") for status in _WAITING])  # as in ix_tasks_open
_WAITING_COUNT = scoped_by_parameter(select(func.count()).select_from(Task).where(_IS_WAITING), Task)
_LIMITS = PreparedStatement(
    select(
        Tenant.queued_tasks_quota, Tenant.month_tokens_quota, Tenant.stored_bytes_quota, _WAITING_COUNT.scalar_subquery()
    ).where(Tenant.id == bindparam("tenant"))
)


class QuotaExceeded(Forbidden):
    """A retry does not help. The problem has the `quota`, its `limit` and the amount `used`."""

    code, title = "quota_exceeded", "The tenant's quota does not allow this"

    @classmethod
    def of(cls, quota: str, limit: int, used: int, way_out: str) -> "QuotaExceeded":
        detail = f"The quota of {quota.replace('_', ' ')} is {limit}, and {used} are used; {way_out}, or ask an admin for more."
        return cls(detail, quota=quota, limit=limit, used=used)


class TaskQuota:
    """The quotas that a new task must fit (queued tasks, the month's tokens, stored bytes), in a transaction that creates up to
    `count` tasks."""

    def __init__(self, session: Session, principal: Principal, count: int = 1) -> None:
        ((self._limit, tokens, stored, self._used),) = _LIMITS.run(session.connection(), tenant_parameter(principal))
        if self._limit is not None and (count > MAX_SHARED_TASKS or self._used + count + _NEAR > self._limit):
            # with so many, or so close to the limit, concurrent transactions could exceed it together
            lock_tenant_quota(session, principal)
            self._used = count_waiting_tasks(session, principal)
        self._other_refusal: QuotaExceeded | None = None
        if tokens is not None and (trained := used_tokens(session, principal, month_of(session))) >= tokens:
            way_out = "the count resets on the first of the month"
            self._other_refusal = QuotaExceeded.of("month_tokens", tokens, trained, way_out)
        elif stored is not None and (held := stored_bytes(session, principal)) >= stored:
            self._other_refusal = QuotaExceeded.of("stored_bytes", stored, held, _FEWER_BYTES)

    def check(self) -> None:
        """Raise QuotaExceeded if the tenant may not queue another task now."""
        if self._limit is not None and self._used >= self._limit:
            way_out = "wait until some have started, or cancel some"
            raise QuotaExceeded.of("queued_tasks", self._limit, self._used, way_out)
        if self._other_refusal is not None:
            raise self._other_refusal

    def count_one(self) -> None:
        """Count a task that this transaction creates."""
        self._used += 1


def admit_bytes(session: Session, principal: Principal, more: int) -> None:
    """Raise QuotaExceeded if the tenant may not store `more` bytes."""
    limit = session.get_one(Tenant, principal.tenant_id).stored_bytes_quota
    if limit is None:
        return
    lock_tenant_quota(session, principal)
    used = stored_bytes(session, principal)
    if used + more > limit:
        raise QuotaExceeded.of("stored_bytes", limit, used, _FEWER_BYTES)


def count_waiting_tasks(session: Session, principal: Principal) -> int:
    """The number of tasks that have not ended and have no node."""
    return session.scalars(_WAITING_COUNT, tenant_parameter(principal)).one()


def stored_bytes(session: Session, principal: Principal) -> int:
    """Bytes of the tenant's undeleted files, adapters and merged models, its jobs' newest checkpoints, and the files that it is
    uploading.

    Only open tasks have checkpoints, so that sum reads few rows. Adapters are summed by their index, without a join: those of
    deleted tasks, which are few until their rows go too, are taken off.
    """
    files = scoped(select(func.sum(File.bytes)).where(File.deleted_at.is_(None)), File, principal)
    kept = scoped(select(func.sum(Adapter.bytes)).where(Adapter.deleted_at.is_(None)), Adapter, principal)
    gone = kept.join(Task, Task.id == Adapter.task_id).where(Task.deleted_at.is_not(None), Task.emptied_at.is_(None))
    adapters = select(func.coalesce(kept.scalar_subquery(), 0) - func.coalesce(gone.scalar_subquery(), 0))
    held = select(func.sum(number_in(Job.checkpoint["bytes"], _MOST_BYTES))).join(Task, Task.id == Job.task_id)
    checkpoints = scoped(held.where(TASK_IS_OPEN, Job.checkpoint.is_not(None)), Task, principal)
    coming = select(func.sum(FileImport.reserved_bytes)).where(FileImport.status == "importing")
    imports = scoped(coming, FileImport, principal)
    arriving = select(func.sum(func.greatest(ChunkedUpload.bytes, ChunkedUpload.received_bytes)))
    is_open = (ChunkedUpload.status == "pending", ChunkedUpload.expires_at > func.clock_timestamp())
    uploads = scoped(arriving.where(*is_open), ChunkedUpload, principal)
    merged = scoped(select(func.sum(MergedModel.bytes)).where(MergedModel.deleted_at.is_(None)), MergedModel, principal)
    held_by = (files, adapters, checkpoints, imports, uploads, merged)
    return sum(int(session.scalars(one).one() or 0) for one in held_by)


def lock_tenant_quota(session: Session, principal: Principal) -> None:
    """Serialize the tenant's quota checks: takes an advisory lock until this transaction ends."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 1))"), {"tenant": principal.tenant_id})
