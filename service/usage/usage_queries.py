"""What tenants used, derived from the rows of tasks, jobs, placements and curves whenever it is asked. Knows no HTTP.

A placement's tokens and device seconds are what its worker measured; where tasks share a step, its seconds are divided among
them by their tokens before they are reported. Steps that a rewind took back are not billed: of what a task's placements did,
that part counts which its visible steps are of all its steps, in training rows. A placement counts for the month it began in.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Double, Select, and_, case, cast, func, select
from sqlalchemy.orm import Session

from contract.states import JobStatus
from service.database.engine import clock
from service.fleet.models import Placement
from service.tasks.models import Job, PointChunk, Task
from service.tasks.resource import batch_size, rows_in
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped


@dataclass(frozen=True)
class Period:
    """From one moment, inclusive, to another, exclusive."""

    start: datetime
    end: datetime

    @classmethod
    def month(cls, year: int, month: int) -> "Period":
        after = (year + 1, 1) if month == 12 else (year, month + 1)
        return cls(datetime(year, month, 1, tzinfo=UTC), datetime(*after, 1, tzinfo=UTC))


def month_of(session: Session) -> Period:
    """The month that it is, in UTC on the database's clock."""
    now = clock(session).astimezone(UTC)
    return Period.month(now.year, now.month)


def trained_tokens(session: Session, principal: Principal, period: Period) -> int:
    """Tokens that count against the quota: those of `usage`'s total."""
    used = usage_of(principal, period).subquery()
    return int(session.scalars(select(func.coalesce(func.sum(used.c.trained_tokens), 0))).one())


def usage_of(principal: Principal, period: Period) -> Select[*tuple[Any, ...]]:
    """A row for each of the caller's tasks that ran in the period: id, created_at, name, and

    trained_tokens, evaluation_tokens, gpu_seconds (billed, of the period); rewound_tokens (not billed, of the period);
    trained_rows (of the task in all); saved_tokens and saved_gpu_seconds (what early exits spared the task in all).
    """
    placed, jobs, hidden = _placed(period), _jobs(), _hidden()
    rewound = func.coalesce(hidden.c.rows, 0)
    billed = cast(jobs.c.trained, Double) / func.nullif(jobs.c.trained + rewound, 0)
    tokens_per_row = placed.c.all_tokens / func.nullif(cast(jobs.c.trained + rewound, Double), 0)
    seconds_per_row = placed.c.all_seconds / func.nullif(cast(jobs.c.trained + rewound, Double), 0)
    whole = func.coalesce(billed, 1.0)
    columns = select(
        Task.id,
        Task.created_at,
        Task.name,
        cast(func.round(placed.c.tokens * whole), BigInteger).label("trained_tokens"),
        cast(func.round(placed.c.evaluation_tokens * whole), BigInteger).label("evaluation_tokens"),
        (placed.c.seconds * whole).label("gpu_seconds"),
        cast(func.round(placed.c.tokens * (1 - whole)), BigInteger).label("rewound_tokens"),
        cast(jobs.c.trained, BigInteger).label("trained_rows"),
        cast(func.round(func.coalesce(jobs.c.saved * tokens_per_row, 0)), BigInteger).label("saved_tokens"),
        func.coalesce(jobs.c.saved * seconds_per_row, 0).label("saved_gpu_seconds"),
    )
    joined = columns.join(placed, placed.c.task_id == Task.id).join(jobs, jobs.c.task_id == Task.id)
    return scoped(joined.outerjoin(hidden, hidden.c.task_id == Task.id), Task, principal)


def _placed(period: Period) -> Any:
    """By task: what its placements of the period did, and what all of them did."""
    within = and_(Placement.created_at >= period.start, Placement.created_at < period.end)
    seconds = Placement.gpu_seconds * func.cardinality(Placement.device_indexes)
    return (
        select(
            Placement.task_id,
            func.sum(case((within, Placement.tokens), else_=0)).label("tokens"),
            func.sum(case((within, Placement.evaluation_tokens), else_=0)).label("evaluation_tokens"),
            func.sum(case((within, seconds), else_=0.0)).label("seconds"),
            func.sum(Placement.tokens).label("all_tokens"),
            func.sum(seconds).label("all_seconds"),
        )
        .group_by(Placement.task_id)
        .having(func.bool_or(within))
        .subquery("placed")
    )


def _jobs() -> Any:
    """By task: training rows of its visible steps, and rows that early exits spared it."""
    saved = rows_in(Job.total_steps) - rows_in(Job.step)
    return (
        select(
            Job.task_id,
            func.coalesce(func.sum(rows_in(Job.step)), 0).label("trained"),
            func.coalesce(func.sum(case((Job.status == JobStatus.EXITED, saved), else_=0)), 0).label("saved"),
        )
        .join(Task, Task.id == Job.task_id)
        .group_by(Job.task_id)
        .subquery("job_rows")
    )


def _hidden() -> Any:
    """By task: training rows of the steps that rewinds took back."""
    steps = func.cardinality(PointChunk.steps)
    return (
        select(Job.task_id, func.sum(steps * batch_size).label("rows"))
        .select_from(PointChunk)
        .join(Job, Job.id == PointChunk.job_id)
        .where(PointChunk.hidden_by.is_not(None), PointChunk.series == "train_loss")
        .group_by(Job.task_id)
        .subquery("hidden_rows")
    )
