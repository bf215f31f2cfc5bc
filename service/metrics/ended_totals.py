"""Counts of ended tasks, jobs and placements, kept so that a scrape costs the same whatever the history's length.

`fold` adds what ended since the last time to the totals; a scrape reads the totals, what ended since, and what has not ended,
each by an index. An ended row never changes, so it is counted once.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, case, func, literal, literal_column, select, union_all

from contract.states import TASK_TERMINAL, TaskStatus
from service.database.engine import Database, clock
from service.fleet.models import Placement, SweptPlacements
from service.metrics.models import EndedTotal, EndedTotalsThrough
from service.tasks.models import Job, Task

# A transaction gives a row its `ended_at` and commits later, at most this much: idle transactions are ended sooner.
_SETTLED = timedelta(hours=1)
SUMS = ("tokens", "evaluation_tokens", "steps", "forwards", "gpu_seconds")
_LOCK = 0x656E6465  # "ende"; an advisory lock of this database
_LONG_AGO: Any = literal_column("timestamptz '-infinity'")

# word for word as in ix_tasks_open
_TASK_IS_OPEN = Task.status.in_([literal_column(f"'{status}'") for status in TaskStatus if status not in TASK_TERMINAL])
_through = func.coalesce(select(EndedTotalsThrough.moment).scalar_subquery(), _LONG_AGO)
_reason = func.coalesce(Placement.end_reason, case((Placement.ended_at.is_(None), "live"), else_="unknown"))
_sums: dict[str, Any] = {name: getattr(Placement, name) for name in SUMS[:-1]} | {
    "gpu_seconds": Placement.gpu_seconds * func.cardinality(Placement.device_indexes)
}


def fold(db: Database, settled: timedelta = _SETTLED) -> None:
    """Count what ended since the last call, but for the last hour. One call at a time; another one does nothing."""
    with db.begin() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        if not session.scalar(select(func.pg_try_advisory_xact_lock(_LOCK))):
            return
        until = clock(session) - settled
        mark = session.get(EndedTotalsThrough, 1)
        if mark is None:
            counted: list[Select[Any]] = [_swept(), *_ended(None, until)]
            session.add(EndedTotalsThrough(id=1, moment=until))
        elif mark.moment >= until:
            return
        else:
            counted, mark.moment = _ended(mark.moment, until), until
        for row in session.execute(union_all(*counted)):
            total = session.get(EndedTotal, (row.kind, row.name)) or EndedTotal(kind=row.kind, name=row.name, rows=0)
            session.add(total)
            total.rows = (total.rows or 0) + row.rows
            for name in SUMS:
                setattr(total, name, (getattr(total, name) or 0) + getattr(row, name))


def _ended(since: datetime | None, until: datetime) -> list[Select[Any]]:
    """Tasks, jobs and placements that ended from `since` on, and before `until`: kind, name, rows and SUMS, by name."""
    made = []
    for kind, model, name in (("tasks", Task, Task.status), ("jobs", Job, Job.status), ("placements", Placement, _reason)):
        sums = _sums if model is Placement else dict.fromkeys(SUMS, literal(0))
        columns = [func.sum(one).label(column) if model is Placement else one.label(column) for column, one in sums.items()]
        counts = select(literal(kind).label("kind"), name.label("name"), func.count().label("rows"), *columns)
        within = [model.ended_at < until] + ([model.ended_at >= since] if since is not None else [])
        made.append(counts.where(*within).group_by(name))
    return made


def _swept() -> Select[Any]:
    """Placements that were deleted before anything was folded."""
    columns = [getattr(SweptPlacements, name).label(name) for name in SUMS]
    return select(
        literal("placements").label("kind"),
        SweptPlacements.end_reason.label("name"),
        SweptPlacements.placements.label("rows"),
        *columns,
    )


def by_status(kind: type[Task] | type[Job]) -> Select[Any]:
    """(status, rows) of all tasks or jobs."""
    is_open = _TASK_IS_OPEN if kind is Task else Job.ended_at.is_(None)
    open_ones = select(kind.status, func.count().label("rows")).where(is_open).group_by(kind.status)
    lately = select(kind.status, func.count()).where(kind.ended_at >= _through).group_by(kind.status)
    kept = select(EndedTotal.name, EndedTotal.rows).where(EndedTotal.kind == kind.__tablename__)
    every = union_all(open_ones, lately, kept).subquery()
    return select(every.c.status, func.sum(every.c.rows)).group_by(every.c.status)


def placements_by_end() -> Any:
    """A subquery of all placements that ever were: reason, rows and SUMS."""
    columns = [one.label(name) for name, one in _sums.items()]
    rows = select(_reason.label("reason"), literal(1).label("rows"), *columns)
    kept = select(EndedTotal.name, EndedTotal.rows, *(getattr(EndedTotal, name) for name in SUMS))
    return union_all(
        rows.where(Placement.ended_at.is_(None)),
        rows.where(Placement.ended_at >= _through),
        kept.where(EndedTotal.kind == "placements"),
    ).subquery()
