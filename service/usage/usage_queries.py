"""Usage queries: tenants' use by task, from the ledger's totals (usage_ledger.py). Knows no HTTP.

The worker measures a placement's tokens and GPU seconds; when tasks share a step, it divides the step's seconds among them
by tokens before reporting. Work undone by rewinds is not billed. A placement counts in the month it began. Only `usage_by_day`
reads placements, which retention deletes in time.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import BigInteger, Date, Double, Select, case, cast, func, select, true
from sqlalchemy.orm import Session, aliased

from contract.states import JobStatus
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.tasks.models import Job, Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.usage.models import CompletionUsage, TaskUsageRecord
from service.usage.trained_rows import rows_in
from service.usage.usage_ledger import month_at, trained_in


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


def usage_by_day(session: Session, principal: Principal, period: Period) -> dict[date, tuple[int, float]]:
    """Billed tokens and GPU seconds of the caller's placements, by the day, in UTC, on which each began. Days whose
    placements retention has removed are missing; the month's totals are not made of these."""
    day = cast(func.date_trunc("day", Placement.created_at), Date)
    tokens = func.sum(Placement.tokens - Placement.rewound_tokens)
    # a placement counts the seconds of one GPU
    seconds = func.sum((Placement.gpu_seconds - Placement.rewound_gpu_seconds) * func.cardinality(Placement.device_indexes))
    within = (Placement.created_at >= period.start, Placement.created_at < period.end)
    rows = select(day, tokens, seconds).join(Task, Task.id == Placement.task_id).where(*within).group_by(day)
    return {when: (int(trained), float(used)) for when, trained, used in session.execute(scoped(rows, Task, principal))}


def device_types_of(session: Session, principal: Principal, period: Period) -> list[str]:
    """The types of the devices on which the caller's placements of the period began; where retention has removed them, those
    of the fleet."""
    within = (Placement.created_at >= period.start, Placement.created_at < period.end)
    kinds = select(Node.devices[0]["type"].astext).join(Placement, Placement.node_id == Node.id)
    found = kinds.join(Task, Task.id == Placement.task_id).where(*within).distinct()
    kept = sorted(kind for kind in session.scalars(scoped(found, Task, principal)) if kind is not None)
    return kept or sorted(
        kind for kind in session.scalars(select(Node.devices[0]["type"].astext).distinct()) if kind is not None
    )


def usage_of(principal: Principal, period: Period) -> Select[*tuple[Any, ...]]:
    """A row for each of the caller's tasks that ran in the period: id, created_at, name, deleted_at, and

    trained_tokens, evaluation_tokens, gpu_seconds (billed, of the period); rewound_tokens (not billed, of the period);
    trained_rows (of the task in all); saved_tokens and saved_gpu_seconds (what early exits spared the task in all).
    """
    used, jobs, whole = TaskUsageRecord, _jobs(), _whole()
    rows = func.nullif(cast(jobs.c.trained + Task.rewound_rows, Double), 0)
    columns = select(
        Task.id,
        Task.created_at,
        Task.name,
        Task.deleted_at,
        (used.tokens - used.rewound_tokens).label("trained_tokens"),
        (used.evaluation_tokens - used.rewound_evaluation_tokens).label("evaluation_tokens"),
        (used.gpu_seconds - used.rewound_gpu_seconds).label("gpu_seconds"),
        used.rewound_tokens.label("rewound_tokens"),
        cast(jobs.c.trained, BigInteger).label("trained_rows"),
        cast(func.round(func.coalesce(jobs.c.saved * whole.c.tokens / rows, 0)), BigInteger).label("saved_tokens"),
        func.coalesce(jobs.c.saved * whole.c.gpu_seconds / rows, 0).label("saved_gpu_seconds"),
    )
    joined = columns.join(used, used.task_id == Task.id).join(jobs, true()).join(whole, true())
    return scoped(joined.where(used.tenant_id == principal.tenant_id, used.month == month_at(period.start)), Task, principal)


# lateral subqueries: they read only the month's tasks, not the tenant's whole history


def _whole() -> Any:
    """Tokens and GPU seconds of all the task's placements."""
    every = aliased(TaskUsageRecord)
    sums = (func.sum(every.tokens).label("tokens"), func.sum(every.gpu_seconds).label("gpu_seconds"))
    return select(*sums).where(every.task_id == Task.id).correlate(Task).lateral("whole")


def _jobs() -> Any:
    """Training rows of the task's visible steps, and rows that early exits saved it."""
    saved = rows_in(Job.total_steps) - rows_in(Job.step)
    sums = (
        func.coalesce(func.sum(rows_in(Job.step)), 0).label("trained"),
        func.coalesce(func.sum(case((Job.status == JobStatus.EXITED, saved), else_=0)), 0).label("saved"),
    )
    return select(*sums).where(Job.task_id == Task.id).correlate(Task).lateral("job_rows")
