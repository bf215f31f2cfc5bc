"""How much a tenant may have at once, and train in a month; counted from rows whenever it matters. Knows no HTTP.

Limits stand in the tenant's row; none means no limit. GPUs in use are the planner's to keep: a task beyond them waits.
"""

from sqlalchemy import BigInteger, bindparam, column, func, literal_column, select, text, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.adapters.models import Adapter
from service.database.prepared_statements import PreparedStatement
from service.files.models import File
from service.fleet.models import Placement
from service.http.problems import Forbidden
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.models import Tenant
from service.tenants.tenant_scope import scoped, scoped_when_asked, whose
from service.usage.usage_queries import month_of, trained_tokens

_WAITING = (TaskStatus.VALIDATING, TaskStatus.QUEUED, TaskStatus.PAUSED)
_NEAR = (
    256  # tasks; as many as the most processes of an API ever make at once, 16 each (tasks/submission/batched_submission.py)
)

_IS_WAITING = Task.status.in_([literal_column(f"'{status}'") for status in _WAITING])  # as ix_tasks_open says it
_QUEUED = scoped_when_asked(select(func.count()).select_from(Task).where(_IS_WAITING), Task)
_LIMITS = PreparedStatement(
    select(Tenant.queued_tasks_quota, Tenant.month_tokens_quota, _QUEUED.scalar_subquery()).where(
        Tenant.id == bindparam("tenant")
    )
)


class QuotaExceeded(Forbidden):
    """Trying again does not help. `quota` names it, with its `limit` and what is `used`."""

    code, title = "quota_exceeded", "The tenant's quota does not allow this"

    @classmethod
    def of(cls, quota: str, limit: int, used: int, way_out: str) -> "QuotaExceeded":
        detail = f"The quota of {quota.replace('_', ' ')} is {limit}, and {used} are used; {way_out}, or ask an admin for more."
        return cls(detail, quota=quota, limit=limit, used=used)


class Room:
    """For how many more tasks a tenant has room, in a transaction that makes up to `wanted`."""

    def __init__(self, session: Session, principal: Principal, wanted: int = 1) -> None:
        ((self._limit, tokens, self._used),) = _LIMITS.run(session.connection(), whose(principal))
        if self._limit is not None and self._used + wanted + _NEAR > self._limit:
            _take_turn(session, principal)  # close enough for two at once to pass together
            self._used = queued_tasks(session, principal)
        self._month: QuotaExceeded | None = None
        if tokens is not None and (trained := trained_tokens(session, principal, month_of(session))) >= tokens:
            way_out = "the count begins anew on the first of the month"
            self._month = QuotaExceeded.of("month_tokens", tokens, trained, way_out)

    def must_have(self) -> None:
        """Raise QuotaExceeded where the tenant may not queue another task now."""
        if self._limit is not None and self._used >= self._limit:
            way_out = "wait until some have started, or cancel some"
            raise QuotaExceeded.of("queued_tasks", self._limit, self._used, way_out)
        if self._month is not None:
            raise self._month

    def taken(self) -> None:
        """Count a task that is being made."""
        self._used += 1


def admit_bytes(session: Session, principal: Principal, more: int) -> None:
    """Raise QuotaExceeded where the tenant may not store so many more bytes."""
    limit = session.get_one(Tenant, principal.tenant_id).stored_bytes_quota
    if limit is None:
        return
    _take_turn(session, principal)
    used = stored_bytes(session, principal)
    if used + more > limit:
        raise QuotaExceeded.of("stored_bytes", limit, used, "delete files that no task needs any more")


def running_gpus(session: Session, principal: Principal) -> int:
    """Devices that the tenant's tasks hold now."""
    devices = select(func.coalesce(func.sum(func.cardinality(Placement.device_indexes)), 0))
    held = devices.join(Task, Task.id == Placement.task_id).where(Placement.ended_at.is_(None))
    return int(session.scalars(scoped(held, Task, principal)).one())


def queued_tasks(session: Session, principal: Principal) -> int:
    """Tasks that have neither ended nor a node."""
    return session.scalars(_QUEUED, whose(principal)).one()


def stored_bytes(session: Session, principal: Principal) -> int:
    """Bytes of the files that are not deleted, and of all adapters."""
    files = scoped(select(func.coalesce(func.sum(File.bytes), 0)).where(File.deleted_at.is_(None)), File, principal)
    entry = func.jsonb_array_elements(Adapter.manifest["files"]).table_valued(column("value", JSONB)).render_derived()
    size = func.coalesce(func.sum(entry.c.value["bytes"].astext.cast(BigInteger)), 0)
    adapters = scoped(select(size).select_from(Adapter).join(entry, true()), Adapter, principal)
    return int(session.scalars(files).one()) + int(session.scalars(adapters).one())


def _take_turn(session: Session, principal: Principal) -> None:
    """Let no other request of the tenant count until this transaction ends."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:whose, 1))"), {"whose": principal.tenant_id})
