"""Usage and quota routes: a tenant's use by task and in total, and its limits."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import Row
from sqlalchemy.orm import Session

from service.app_state import Config, SystemDb
from service.authentication import Db, Reader
from service.http.pagination import Cursor, Limit, read_cursor, write_cursor
from service.http.response_schemas import bytes_of, problems
from service.scheduler.state import usage_shares
from service.tenants.models import Tenant
from service.usage import quotas
from service.usage.prices import Prices, costs_of_tasks, read_prices
from service.usage.usage_queries import (
    UNKNOWN_TYPE,
    DayUsage,
    Period,
    completions_of,
    device_types_of,
    month_of,
    names_of,
    page_of,
    savings_of,
    usage_by_day,
    usage_by_day_of_tasks,
    used_tokens,
)

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
    cost: float | None = Field(default=None, description="Of the GPU seconds; null where some of them have no price")


class DayAmounts(BaseModel):
    """A day in UTC and a type of GPU; a run counts for the day it began on."""

    day: date
    device_type: str = Field(description="`unknown`: the type was not kept; such use stands on the first of its month")
    trained_tokens: int
    gpu_seconds: float
    cost: float | None


class CompletionAmounts(BaseModel):
    """What bases and adapters were asked, beside the tasks. Its tokens count towards the quota `month_tokens`."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    gpu_seconds: float = Field(description="Of the passes that answered, on whatever type of GPU; no cost is made of them")


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
    currency: str
    days: list[DayAmounts] = Field(description="The same total by day and type of GPU")
    completions: CompletionAmounts
    data: list[TaskUsage] = Field(description="The tasks that ran in the month, the newest first")
    next_cursor: str | None


class Quota(BaseModel):
    limit: int | None = Field(description="Null: no limit")
    used: int


class Quotas(BaseModel):
    """How much the tenant may have; what goes beyond is answered with `quota_exceeded`, but for GPUs: their tasks wait."""

    object: Literal["quotas"] = "quotas"
    running_gpus: Quota = Field(
        description="In GPUs of the fleet's fastest type, slower ones by their part of its speed; of those that tasks of "
        "several tenants share, the part by how many each would have alone; rounded up"
    )
    queued_tasks: Quota
    stored_bytes: Quota
    month_tokens: Quota = Field(description="Trained, and asked and answered, since the first of the month, in UTC")


@router.get("/usage", operation_id="get_usage", summary="Get what was used in a month", responses=problems(422))
def get_usage(reader: Reader, db: Db, settings: Config, month: Month = None, cursor: Cursor = None, limit: Limit = 20) -> Usage:
    after = read_cursor(cursor)[1] if cursor is not None else None
    with db.begin() as session:
        period = period_of(session, month)
        prices = read_prices(session, settings)
        days = usage_by_day(session, reader, period)
        saved = savings_of(session, reader, period)
        rows = session.execute(page_of(reader, period, after, limit + 1)).all()
        costs = costs_of_tasks(session, reader, prices, period, [row.id for row in rows[:limit]])
        kinds = {one.device_type for one in days} - {UNKNOWN_TYPE} or device_types_of(session)
        asked = completions_of(session, reader, period)
    return Usage(
        start=period.start,
        end=period.end,
        device_types=sorted(kinds),
        total=_total(days, saved, prices),
        currency=settings.currency,
        days=[_day(one, prices) for one in days],
        completions=CompletionAmounts(**asked),
        data=[_task(row, costs) for row in rows[:limit]],
        next_cursor=write_cursor(rows[limit - 1]) if len(rows) > limit else None,
    )


_COST_COLUMNS = (
    *("day", "task_id", "task", "device_type", "trained_tokens", "evaluation_tokens", "gpu_seconds"),
    *("price_per_hour", "cost", "currency"),
)


@router.get(
    "/usage/costs.csv",
    operation_id="export_costs",
    summary="Export a month's costs by day, task and type of GPU",
    description=f"CSV with the columns {', '.join(_COST_COLUMNS)}. Price and cost are empty where the type has no price.",
    response_class=Response,
    responses=bytes_of("text/csv", "One line for each day, task and type of GPU") | problems(422),
)
def export_costs(reader: Reader, db: Db, settings: Config, month: Month = None) -> Response:
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(_COST_COLUMNS)
    with db.begin() as session:
        period, prices = period_of(session, month), read_prices(session, settings)
        names = {id: name for id, name in session.execute(names_of(reader, period))}
        for task_id, used in usage_by_day_of_tasks(session, reader, period):
            price, cost = prices.per_hour(used.device_type, used.day), prices.cost(used)
            amounts = (used.tokens, used.evaluation_tokens, f"{used.gpu_seconds:.3f}")
            told = ("" if price is None else price, "" if cost is None else f"{cost:.6f}", settings.currency)
            lines.writerow([used.day, task_id, plain_cell(names.get(task_id)), plain_cell(used.device_type), *amounts, *told])
    name = f"costs-{period.start:%Y-%m}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


@router.get("/quotas", operation_id="get_quotas", summary="Get the tenant's quotas and what is used of them")
def get_quotas(reader: Reader, db: Db, system: SystemDb) -> Quotas:
    with system.begin() as session:
        gpus = usage_shares.running_gpus(session, reader.tenant_id)
    with db.begin() as session:
        tenant = session.get_one(Tenant, reader.tenant_id)
        return Quotas(
            running_gpus=Quota(limit=tenant.running_gpus_quota, used=gpus),
            queued_tasks=Quota(limit=tenant.queued_tasks_quota, used=quotas.count_waiting_tasks(session, reader)),
            stored_bytes=Quota(limit=tenant.stored_bytes_quota, used=quotas.stored_bytes(session, reader)),
            month_tokens=Quota(limit=tenant.month_tokens_quota, used=used_tokens(session, reader, month_of(session))),
        )


def period_of(session: Session, month: str | None) -> Period:
    """The period of `Month`."""
    if month is None:
        return month_of(session)
    year, _, number = month.partition("-")
    return Period.month(int(year), int(number))


def plain_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" and value else value


def _total(days: Sequence[DayUsage], saved: tuple[int, float], prices: Prices) -> Amounts:
    return Amounts(
        trained_tokens=sum(one.tokens for one in days),
        evaluation_tokens=sum(one.evaluation_tokens for one in days),
        gpu_seconds=sum(one.gpu_seconds for one in days),
        rewound_tokens=sum(one.rewound_tokens for one in days),
        saved_tokens=saved[0],
        saved_gpu_seconds=saved[1],
        cost=prices.total(days),
    )


def _day(used: DayUsage, prices: Prices) -> DayAmounts:
    return DayAmounts(
        day=used.day,
        device_type=used.device_type,
        trained_tokens=used.tokens,
        gpu_seconds=used.gpu_seconds,
        cost=prices.cost(used),
    )


def _task(row: Row[*tuple[Any, ...]], costs: Mapping[str, float | None]) -> TaskUsage:
    said = dict(row._mapping)
    return TaskUsage(task_id=said.pop("id"), cost=costs.get(row.id), **said)
