"""Usage queries: tenants' use by task, from the ledger's totals (usage_ledger.py). Knows no HTTP.

The worker measures a placement's tokens and GPU seconds; when tasks share a step, it divides the step's seconds among them
by tokens before reporting. Work undone by rewinds is not billed. A placement counts in the month, and on the day, it began.
Sums over many tasks are read from what daily_rollup.py has kept, and from the rows that it has not rolled up yet.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Date, Double, Select, case, cast, func, select, true, union_all
from sqlalchemy.orm import Session, aliased

from contract.states import JobStatus
from service.database.ended_rows import LONG_AGO
from service.database.engine import clock
from service.fleet.models import PLACED_ON_TYPE, Node, Placement
from service.tasks.models import TASK_IS_OPEN, Job, Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.usage.models import (
    CompletionUsage,
    DailyUsage,
    MonthlySavings,
    RolledUpThrough,
    TaskUsageRecord,
    TenantDailyUsage,
)
from service.usage.trained_rows import rows_in
from service.usage.usage_ledger import month_at, trained_in

T = TypeVar("T")

UNKNOWN_TYPE = "unknown"  # of GPUs whose placements were removed before their type was kept


@dataclass(frozen=True)
class Period:
    """From `start`, inclusive, to `end`, exclusive."""

    start: datetime
    end: datetime

    @classmethod
    def month(cls, year: int, month: int) -> "Period":
        after = (year + 1, 1) if month == 12 else (year, month + 1)
        return cls(datetime(year, month, 1, tzinfo=UTC), datetime(*after, 1, tzinfo=UTC))


def month_of(session: Session) -> Period:
    """The current month, in UTC on the database's clock."""
    now = clock(session).astimezone(UTC)
    return Period.month(now.year, now.month)


def used_tokens(session: Session, principal: Principal, period: Period) -> int:
    """Tokens that count against the quota: `trained_tokens` in the period's total, and those of completions."""
    asked = completions_of(session, principal, period)
    trained = trained_in(session, principal.tenant_id, month_at(period.start))
    return trained + int(asked["prompt_tokens"] + asked["completion_tokens"])


def completions_of(session: Session, principal: Principal, period: Period) -> dict[str, float]:
    """What the caller's completions used in the period: requests, prompt_tokens, completion_tokens, gpu_seconds."""
    names = ("requests", "prompt_tokens", "completion_tokens", "gpu_seconds")
    sums = select(*(func.coalesce(func.sum(getattr(CompletionUsage, name)), 0).label(name) for name in names))
    own = scoped(sums.where(CompletionUsage.month == month_at(period.start)), CompletionUsage, principal)
    return dict(session.execute(own).one()._mapping)


def gpu_seconds_of(session: Session, principal: Principal, task_id: str) -> float:
    """GPU seconds that the caller's task has been billed for, in all its time."""
    billed = func.coalesce(func.sum(TaskUsageRecord.gpu_seconds - TaskUsageRecord.rewound_gpu_seconds), 0.0)
    return float(
        session.scalars(scoped(select(billed).where(TaskUsageRecord.task_id == task_id), TaskUsageRecord, principal)).one()
    )


@dataclass(frozen=True)
class DayUsage:
    """Billed usage of a day, in UTC, on GPUs of one type. Seconds are summed over GPUs; `rewound_tokens` are not billed."""

    day: date
    device_type: str
    tokens: int
    evaluation_tokens: int
    rewound_tokens: int
    gpu_seconds: float


AMOUNTS = ("tokens", "evaluation_tokens", "rewound_tokens", "gpu_seconds")
_day = cast(func.timezone("UTC", Placement.created_at), Date)


def usage_by_day(session: Session, principal: Principal, period: Period) -> list[DayUsage]:
    """The caller's usage in the period by day and type. The days of placements that retention removed before usage was kept by
    day are unknown: they count for the first of their month, on UNKNOWN_TYPE."""
    kept = TenantDailyUsage.__table__.c
    rolled = scoped(select(kept.day, kept.device_type, *(kept[name] for name in AMOUNTS)), TenantDailyUsage, principal)
    rolled = rolled.where(kept.day >= period.start.date(), kept.day < period.end.date())

    def read(mark: datetime) -> list[DayUsage]:
        lately = (select(c.day, c.device_type, *(c[name] for name in AMOUNTS)) for c in _since(mark, principal, period))
        every = union_all(rolled, *lately).subquery().c
        sums = (func.sum(every[name]) for name in AMOUNTS)
        rows = select(every.day, every.device_type, *sums).group_by(every.day, every.device_type)
        return [_day_usage(*row) for row in session.execute(rows.order_by(every.day, every.device_type))]

    return _between_roll_ups(session, read)


def usage_by_day_of_tasks(
    session: Session, principal: Principal, period: Period | None = None, task_ids: Sequence[str] | None = None
) -> list[tuple[str, DayUsage]]:
    """The same of each task, with its id, by day; None: of all time, of all tasks."""
    kept = DailyUsage.__table__.c
    rolled = scoped(select(kept.task_id, kept.day, kept.device_type, *(kept[n] for n in AMOUNTS)), DailyUsage, principal)
    if period is not None:
        rolled = rolled.where(kept.day >= period.start.date(), kept.day < period.end.date())
    if task_ids is not None:
        rolled = rolled.where(kept.task_id.in_(task_ids))

    def read(mark: datetime) -> list[tuple[str, DayUsage]]:
        lately = (
            select(c.task_id, c.day, c.device_type, *(c[name] for name in AMOUNTS))
            for c in _since(mark, principal, period, task_ids)
        )
        every = union_all(rolled, *lately).subquery().c
        by = (every.day, every.task_id, every.device_type)
        sums = (func.sum(every[name]) for name in AMOUNTS)
        rows = select(every.task_id, every.day, every.device_type, *sums).group_by(*by).order_by(*by)
        return [(task_id, _day_usage(*said)) for task_id, *said in session.execute(rows)]

    return _between_roll_ups(session, read)


def _between_roll_ups(session: Session, read: Callable[[datetime], T]) -> T:
    """What `read` finds, given the moment of the last roll-up; again where one came meanwhile. Postgres plans a comparison
    with a moment that it knows far better than one with a subquery's."""
    moment = select(RolledUpThrough.moment)
    mark = session.scalar(moment)
    while True:
        found = read(mark or LONG_AGO)
        if (now := session.scalar(moment)) == mark:
            return found
        mark = now


def _since(mark: datetime, principal: Principal, period: Period | None, task_ids: Sequence[str] | None = None) -> Iterator[Any]:
    """Columns of the caller's live placements, and of those that ended from `mark` on."""
    columns = (
        *(Placement.task_id.label("task_id"), _day.label("day")),
        func.coalesce(PLACED_ON_TYPE, UNKNOWN_TYPE).label("device_type"),
        (Placement.tokens - Placement.rewound_tokens).label("tokens"),
        (Placement.evaluation_tokens - Placement.rewound_evaluation_tokens).label("evaluation_tokens"),
        Placement.rewound_tokens.label("rewound_tokens"),
        # a placement counts the seconds of one GPU
        ((Placement.gpu_seconds - Placement.rewound_gpu_seconds) * func.cardinality(Placement.device_indexes)).label(
            "gpu_seconds"
        ),
    )
    own = select(*columns).join(Task, Task.id == Placement.task_id).join(Node, Node.id == Placement.node_id)
    own = scoped(own, Task, principal)
    if period is not None:
        own = own.where(Placement.created_at >= period.start, Placement.created_at < period.end)
    if task_ids is not None:
        own = own.where(Placement.task_id.in_(task_ids))
    yield own.where(Placement.ended_at.is_(None)).subquery().c
    yield own.where(Placement.ended_at >= mark).subquery().c


def _day_usage(day: date, device_type: str, tokens: Any, evaluated: Any, rewound: Any, seconds: Any) -> DayUsage:
    return DayUsage(day, device_type, int(tokens), int(evaluated), int(rewound), float(seconds))


def device_types_of(session: Session) -> set[str]:
    """The types of the fleet's devices."""
    return {kind for kind in session.scalars(select(Node.devices[0]["type"].astext).distinct()) if kind is not None}


def names_of(principal: Principal, period: Period) -> Select[str, str | None]:
    """(id, name) of the caller's tasks that ran in the period."""
    used = TaskUsageRecord
    named = select(Task.id, Task.name).join(used, used.task_id == Task.id).where(used.month == month_at(period.start))
    return scoped(scoped(named, used, principal), Task, principal)


def savings_of(session: Session, principal: Principal, period: Period) -> tuple[int, float]:
    """Tokens and GPU seconds that early exits spared the tasks that ran in the month, in all their time."""
    month = month_at(period.start)
    kept = select(MonthlySavings.saved_tokens, MonthlySavings.saved_gpu_seconds).where(MonthlySavings.month == month)
    ran = with_savings(select()).where(TaskUsageRecord.month == month)
    ran = scoped(scoped(ran, TaskUsageRecord, principal), Task, principal)

    def read(mark: datetime) -> tuple[int, float]:
        every = union_all(scoped(kept, MonthlySavings, principal), ran.where(TASK_IS_OPEN), ran.where(Task.ended_at >= mark))
        saved = every.subquery().c
        tokens, seconds = session.execute(select(func.sum(saved.saved_tokens), func.sum(saved.saved_gpu_seconds))).one()
        return int(tokens or 0), float(seconds or 0.0)

    return _between_roll_ups(session, read)


def usage_of(principal: Principal, period: Period) -> Select[*tuple[Any, ...]]:
    """A row for each of the caller's tasks that ran in the period, the newest first: id, created_at, name, deleted_at, and

    trained_tokens, evaluation_tokens, gpu_seconds (billed, of the period); rewound_tokens (not billed, of the period);
    trained_rows (of the task in all); saved_tokens and saved_gpu_seconds (what early exits spared the task in all).
    """
    used = TaskUsageRecord
    columns = select(
        Task.id,
        Task.created_at,
        Task.name,
        Task.deleted_at,
        (used.tokens - used.rewound_tokens).label("trained_tokens"),
        (used.evaluation_tokens - used.rewound_evaluation_tokens).label("evaluation_tokens"),
        (used.gpu_seconds - used.rewound_gpu_seconds).label("gpu_seconds"),
        used.rewound_tokens.label("rewound_tokens"),
        cast(_jobs.c.trained, BigInteger).label("trained_rows"),
    )
    own = with_savings(columns).where(used.tenant_id == principal.tenant_id, used.month == month_at(period.start))
    return scoped(own, Task, principal).order_by(used.task_id.desc())


def page_of(principal: Principal, period: Period, after: str | None, limit: int) -> Select[*tuple[Any, ...]]:
    """The first `limit` of those rows after the task `after`; an id begins with the moment of its creation."""
    used = TaskUsageRecord
    ids = scoped(select(used.task_id).where(used.month == month_at(period.start)), used, principal)
    if after is not None:
        ids = ids.where(used.task_id < after)
    return usage_of(principal, period).where(used.task_id.in_(ids.order_by(used.task_id.desc()).limit(limit)))


def with_savings(columns: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """The columns, of task_usage joined with its tasks, and saved_tokens and saved_gpu_seconds beside them."""
    rows = func.nullif(cast(_jobs.c.trained + Task.rewound_rows, Double), 0)
    saved = columns.add_columns(
        cast(func.round(func.coalesce(_jobs.c.saved * _whole.c.tokens / rows, 0)), BigInteger).label("saved_tokens"),
        func.coalesce(_jobs.c.saved * _whole.c.gpu_seconds / rows, 0).label("saved_gpu_seconds"),
    )
    joined = saved.select_from(TaskUsageRecord).join(Task, Task.id == TaskUsageRecord.task_id)
    return joined.join(_jobs, true()).join(_whole, true())


# lateral subqueries: they read only the month's tasks, not the tenant's whole history


def _whole_of_task() -> Any:
    """Tokens and GPU seconds of all the task's placements."""
    every = aliased(TaskUsageRecord)
    sums = (func.sum(every.tokens).label("tokens"), func.sum(every.gpu_seconds).label("gpu_seconds"))
    return select(*sums).where(every.task_id == Task.id).correlate(Task).lateral("whole")


def _jobs_of_task() -> Any:
    """Training rows of the task's visible steps, and rows that early exits saved it."""
    saved = rows_in(Job.total_steps) - rows_in(Job.step)
    sums = (
        func.coalesce(func.sum(rows_in(Job.step)), 0).label("trained"),
        func.coalesce(func.sum(case((Job.status == JobStatus.EXITED, saved), else_=0)), 0).label("saved"),
    )
    return select(*sums).where(Job.task_id == Task.id).correlate(Task).lateral("job_rows")


_whole, _jobs = _whole_of_task(), _jobs_of_task()
