"""Usage and quota routes: a tenant's use by task and in total, and its limits."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from sqlalchemy import Row, desc, func, select, tuple_

from service.authentication import Db, Reader
from service.http.pagination import Cursor, Limit, read_cursor, write_cursor
from service.http.response_schemas import problems
from service.scheduler.state import usage_shares
from service.tenants.models import Tenant
from service.usage import quotas
from service.usage.usage_queries import Period, completions_of, device_types_of, month_of, usage_of, used_tokens

router = APIRouter(prefix="/v1", tags=["usage"], responses=problems(401, 403))

Month = Annotated[str | None, Query(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$", description="As 2026-11; left out, this month")]


class Amounts(BaseModel):
    """Billed: what rewinds took back is left out, and said apart."""

    trained_tokens: int
    evaluation_tokens: int
    gpu_seconds: float = Field(description="Of one GPU; jobs that share a step share its seconds by their tokens")
    rewound_tokens: int = Field(description="Trained, then lost with a node or an executor; not billed")
    saved_tokens: int = Field(description="What early exits spared these tasks, in all their time")
    saved_gpu_seconds: float


class CompletionAmounts(BaseModel):
    """What bases and adapters were asked, beside the tasks. Its tokens count towards the quota `month_tokens`."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    gpu_seconds: float


class TaskUsage(Amounts):
    task_id: str
    name: str | None
    created_at: datetime
    deleted_at: datetime | None = Field(default=None, description="Since then the task is gone; its use stays billed")
    trained_rows: int = Field(description="Training rows through the model, in all the task's time")


class Usage(BaseModel):
    """What the tenant's tasks used within a month; a run counts for the month it began in."""

    object: Literal["usage"] = "usage"
    start: datetime
    end: datetime
    device_types: list[str] = Field(
        default=[], description="That the month's tasks ran on; `cpu`: GPU seconds are of CPU slots"
    )
    total: Amounts
    completions: CompletionAmounts
    data: list[TaskUsage] = Field(description="The tasks that ran in the month, the newest first")
    next_cursor: str | None


class Quota(BaseModel):
    limit: int | None = Field(description="Null: no limit")
    used: int


class Quotas(BaseModel):
    """How much the tenant may have; what goes beyond is answered with `quota_exceeded`, but for GPUs: their tasks wait."""

    object: Literal["quotas"] = "quotas"
    running_gpus: Quota
    queued_tasks: Quota
    stored_bytes: Quota
    month_tokens: Quota = Field(description="Trained, and asked and answered, since the first of the month, in UTC")


@router.get("/usage", operation_id="get_usage", summary="Get what was used in a month", responses=problems(422))
def get_usage(reader: Reader, db: Db, month: Month = None, cursor: Cursor = None, limit: Limit = 20) -> Usage:
    with db.begin() as session:
        period = month_of(session) if month is None else _period(month)
        used = usage_of(reader, period).subquery()
        total = session.execute(select(*(func.sum(used.c[name]).label(name) for name in Amounts.model_fields))).one()
        tasks = select(used).order_by(desc(used.c.created_at), desc(used.c.id)).limit(limit + 1)
        if cursor is not None:
            tasks = tasks.where(tuple_(used.c.created_at, used.c.id) < tuple_(*read_cursor(cursor)))
        rows = session.execute(tasks).all()
        kinds = device_types_of(session, reader, period)
        asked = completions_of(session, reader, period)
    page = [_task(row) for row in rows[:limit]]
    more = write_cursor(rows[limit - 1]) if len(rows) > limit else None
    return Usage(
        start=period.start,
        end=period.end,
        device_types=kinds,
        total=_amounts(total),
        completions=CompletionAmounts(**asked),
        data=page,
        next_cursor=more,
    )


@router.get("/quotas", operation_id="get_quotas", summary="Get the tenant's quotas and what is used of them")
def get_quotas(reader: Reader, db: Db) -> Quotas:
    with db.begin() as session:
        tenant = session.get_one(Tenant, reader.tenant_id)
        return Quotas(
            running_gpus=Quota(limit=tenant.running_gpus_quota, used=usage_shares.running_gpus(session, reader)),
            queued_tasks=Quota(limit=tenant.queued_tasks_quota, used=quotas.count_waiting_tasks(session, reader)),
            stored_bytes=Quota(limit=tenant.stored_bytes_quota, used=quotas.stored_bytes(session, reader)),
            month_tokens=Quota(limit=tenant.month_tokens_quota, used=used_tokens(session, reader, month_of(session))),
        )


def _period(month: str) -> Period:
    year, _, number = month.partition("-")
    return Period.month(int(year), int(number))


def _amounts(row: Row[*tuple[Any, ...]]) -> Amounts:
    return Amounts(**{name: value or 0 for name, value in row._mapping.items()})


def _task(row: Row[*tuple[Any, ...]]) -> TaskUsage:
    said = dict(row._mapping)
    return TaskUsage(task_id=said.pop("id"), **said)
