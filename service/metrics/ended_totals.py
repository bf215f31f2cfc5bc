"""Counts of ended tasks, jobs and placements, kept so that a scrape costs the same whatever the history's length.

`fold` adds what ended since the last time to the totals; a scrape reads the totals, what ended since, and what has not ended,
each by an index. An ended row never changes, so it is counted once.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, case, func, literal, literal_column, select, union_all

from service.database.ended_rows import SETTLED, claim_mark
from service.database.engine import Database, clock
from service.fleet.models import Placement, SweptPlacements
from service.metrics.models import EndedTotal, EndedTotalsThrough
from service.tasks.models import TASK_IS_OPEN, Job, Task

SUMS = ("tokens", "evaluation_tokens", "steps", "forwards", "gpu_seconds")
_LOCK = 0x656E6465  # "ende"; an advisory lock of this database

_through = func.coalesce(select(EndedTotalsThrough.moment).scalar_subquery(), literal_column("timestamptz '-infinity'"))
_reason = func.coalesce(Placement.end_reason, case((Placement.ended_at.is_(None), "live"), else_="unknown"))
_sums: dict[str, Any] = {name: getattr(Placement, name) for name in SUMS[:-1]} | {
    "gpu_seconds": Placement.gpu_seconds * func.cardinality(Placement.device_indexes)
}


def fold(db: Database, settled: timedelta = SETTLED) -> None:
    """Count what ended since the last call, but for the last hour. One call at a time; another one does nothing."""
    with db.begin() as session:
        until = clock(session) - settled
    with db.begin() as session:
        if (claimed := claim_mark(session, EndedTotalsThrough, _LOCK, until)) is None:
            return
        mark, is_new = claimed
        counted = _ended(mark.moment, until) + ([_swept()] if is_new else [])
        mark.moment = until
        for row in session.execute(union_all(*counted)):
            total = session.get(EndedTotal, (row.kind, row.name)) or EndedTotal(kind=row.kind, name=row.name, rows=0)
            session.add(total)
            total.rows = (total.rows or 0) + row.rows
            for name in SUMS:
                setattr(total, name, (getattr(total, name) or 0) + getattr(row, name))


def _ended(since: datetime, until: datetime) -> list[Select[Any]]:
    """Tasks, jobs and placements that ended from `since` on, and before `until`: kind, name, rows and SUMS, by name."""
    made = []
    for kind, model, name in (("tasks", Task, Task.status), ("jobs", Job, Job.status), ("placements", Placement, _reason)):
        sums = _sums if model is Placement else dict.fromkeys(SUMS, literal(0))
        columns = [func.sum(one).label(column) if model is Placement else one.label(column) for column, one in sums.items()]
        counts = select(literal(kind).label("kind"), name.label("name"), func.count().label("rows"), *columns)
        made.append(counts.where(model.ended_at >= since, model.ended_at < until).group_by(name))
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
    is_open = TASK_IS_OPEN if kind is Task else Job.ended_at.is_(None)
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
