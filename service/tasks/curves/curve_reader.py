"""Reads the loss curves of a task, without points that rewinds hid: point by point, or downsampled to buckets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy import Subquery, func, select
from sqlalchemy.orm import Session

from contract.messages.report_messages import Series
from service.http.problems import Invalid
from service.tasks.curves.downsampling import CurveBucket, merged, width_for
from service.tasks.models import CurveSummary, Job, PointChunk
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import Rows, scoped

MAX_POINTS = 500_000
MAX_RESOLUTION = 2000

_Key = tuple[str, str]  # job id, series


class Curve(BaseModel):
    """One series of one job. A loss that was not finite is null."""

    job_id: str
    index: int
    series: Series
    steps: list[int] = Field(description="With a resolution: the first step of each bucket")
    values: list[float | None] = Field(description="With a resolution: the mean of the bucket's finite losses")
    mins: list[float | None] | None = Field(default=None, description="With a resolution: the least of each bucket")
    maxs: list[float | None] | None = Field(default=None, description="With a resolution: the greatest of each bucket")


class Metrics(BaseModel):
    object: Literal["metrics"] = "metrics"
    data: list[Curve] = Field(description="By job index, then series")


class TooManyPoints(Invalid):
    code, title = "too_many_points", "The answer would be too large"


@dataclass(frozen=True)
class Window:
    """A filter on points: these jobs and series (empty: all), and a range of steps, both ends inclusive."""

    jobs: Sequence[int]
    series: Sequence[Series]
    from_step: int = 0
    to_step: int | None = None

    def holds(self, step: int) -> bool:
        return step >= self.from_step and (self.to_step is None or step <= self.to_step)


def curves(session: Session, principal: Principal, task_id: str, window: Window) -> Metrics:
    """The full curves in job order. Raises TooManyPoints above MAX_POINTS points in total."""
    points = session.scalar(_chunks(select(func.sum(func.cardinality(PointChunk.steps))), principal, task_id, window))
    if points is not None and points > MAX_POINTS:
        narrow = "narrow it with job, series, from_step or to_step, or ask for a resolution"
        raise TooManyPoints([], f"{points} points are asked for, the limit is {MAX_POINTS}; {narrow}")
    found: dict[_Key, Curve] = {}
    columns = select(Job.id, Job.index, PointChunk.series, PointChunk.steps, PointChunk.values)
    ordered = _chunks(columns, principal, task_id, window).order_by(Job.index, PointChunk.series, PointChunk.first_step)
    for job_id, index, series, steps, values in session.execute(ordered):
        empty = Curve(job_id=job_id, index=index, series=series, steps=[], values=[])
        curve = found.setdefault((job_id, series), empty)
        for step, value in zip(steps, values, strict=True):
            if window.holds(step):
                curve.steps.append(step)
                curve.values.append(value if math.isfinite(value) else None)
    return Metrics(data=[curve for curve in found.values() if curve.steps])


def val_losses(session: Session, principal: Principal, job_ids: Sequence[str]) -> dict[str, list[float]]:
    """The finite validation losses of these jobs of the caller, in the order of their steps."""
    columns = select(Job.id, PointChunk.values).join(PointChunk, PointChunk.job_id == Job.id)
    chosen = columns.where(Job.id.in_(job_ids), PointChunk.series == "val_loss", PointChunk.hidden_by.is_(None))
    found: dict[str, list[float]] = {}
    for job_id, values in session.execute(scoped(chosen, Job, principal).order_by(Job.id, PointChunk.first_step)):
        found.setdefault(job_id, []).extend(value for value in values if math.isfinite(value))
    return found


def best_point(session: Session, job_id: str, series: str) -> tuple[int, float] | None:
    """The step and value of the lowest finite visible point; the earliest step wins ties."""
    points = _points(job_id, series)
    finite = select(points.c.step, points.c.value).where(points.c.value < float("inf"), points.c.value > float("-inf"))
    found = session.execute(finite.order_by(points.c.value, points.c.step).limit(1)).one_or_none()
    return (found.step, found.value) if found else None


def values_at(session: Session, job_id: str, series: str, steps: Sequence[int]) -> list[float]:
    """The visible values at those of `steps` that have one, in ascending order of step."""
    points = _points(job_id, series)
    return list(session.scalars(select(points.c.value).where(points.c.step.in_(steps)).order_by(points.c.step)))


def _points(job_id: str, series: str) -> Subquery:
    """Subquery over the visible points of a series, with columns step and value."""
    step, value = func.unnest(PointChunk.steps).label("step"), func.unnest(PointChunk.values).label("value")
    visible = (PointChunk.job_id == job_id, PointChunk.series == series, PointChunk.hidden_by.is_(None))
    return select(step, value).where(*visible).subquery()


def coarse_curves(session: Session, principal: Principal, task_id: str, window: Window, resolution: int) -> Metrics:
    """The curves in job order, each in about `resolution` buckets at most, all of one width.

    Reads the stored summary of an ended job where it is fine enough; otherwise Postgres aggregates the points.
    """
    extent = func.min(PointChunk.first_step), func.max(PointChunk.last_step)
    by_curve = _chunks(select(Job.id, Job.index, PointChunk.series, *extent), principal, task_id, window)
    known = session.execute(
        by_curve.group_by(Job.id, Job.index, PointChunk.series).order_by(Job.index, PointChunk.series)
    ).all()
    if not known:
        return Metrics(data=[])
    first = max(window.from_step, min(row[3] for row in known))
    last = max(row[4] for row in known)
    width = width_for(min(last, window.to_step if window.to_step is not None else last) - first + 1, resolution)
    found = _summarised(session, [row[0] for row in known], window, width)
    found |= _gathered(session, principal, task_id, window, width, {(row[0], row[2]) for row in known} - set(found))
    return Metrics(data=[_coarse(row, found[row[0], row[2]], width) for row in known if (row[0], row[2]) in found])


def _summarised(session: Session, job_ids: list[str], window: Window, width: int) -> dict[_Key, list[CurveBucket]]:
    """The curves, by key, that lie in the window as a whole and have a stored summary that is fine enough."""
    if window.from_step > 0 or window.to_step is not None:
        return {}
    stored = select(CurveSummary).where(CurveSummary.job_id.in_(job_ids), CurveSummary.width <= width)
    if window.series:
        stored = stored.where(CurveSummary.series.in_(window.series))
    return {(summary.job_id, summary.series): merged(summary, width) for summary in session.scalars(stored)}


def _gathered(
    session: Session, principal: Principal, task_id: str, window: Window, width: int, wanted: set[_Key]
) -> dict[_Key, list[CurveBucket]]:
    """Aggregates the wanted curves' points to buckets, in Postgres."""
    if not wanted:
        return {}
    point = func.unnest(PointChunk.steps, PointChunk.values).table_valued("step", "value").render_derived().lateral()
    step, value = point.c.step, point.c.value
    finite = (value < float("inf")) & (value > float("-inf"))
    sums = [func.count().filter(finite), *(made(value).filter(finite) for made in (func.avg, func.min, func.max))]
    number = (step // width).label("number")
    rows = _chunks(select(Job.id, PointChunk.series, number, *sums), principal, task_id, window).join(point, finite | ~finite)
    rows = rows.where(step >= window.from_step, Job.id.in_(sorted({job_id for job_id, _ in wanted})))
    if window.to_step is not None:
        rows = rows.where(step <= window.to_step)
    found: dict[_Key, list[CurveBucket]] = {}
    for job_id, series, at, count, *losses in session.execute(
        rows.group_by(Job.id, PointChunk.series, number).order_by(number)
    ):
        if (job_id, series) in wanted:
            found.setdefault((job_id, series), []).append(CurveBucket(at, count, *(losses if count else ())))
    return found


def _coarse(row: Any, buckets: list[CurveBucket], width: int) -> Curve:
    return Curve(
        job_id=row[0],
        index=row[1],
        series=row[2],
        steps=[bucket.number * width for bucket in buckets],
        values=[bucket.mean if bucket.count else None for bucket in buckets],
        mins=[bucket.least if bucket.count else None for bucket in buckets],
        maxs=[bucket.greatest if bucket.count else None for bucket in buckets],
    )


def _chunks(columns: Rows, principal: Principal, task_id: str, window: Window) -> Rows:
    """Restricts `columns` to the visible chunks that overlap the window."""
    chunks = columns.select_from(PointChunk).join(Job, Job.id == PointChunk.job_id)
    chunks = scoped(chunks.where(Job.task_id == task_id, PointChunk.hidden_by.is_(None)), Job, principal)
    chunks = chunks.where(PointChunk.last_step >= window.from_step)
    if window.to_step is not None:
        chunks = chunks.where(PointChunk.first_step <= window.to_step)
    if window.jobs:
        chunks = chunks.where(Job.index.in_(window.jobs))
    return chunks.where(PointChunk.series.in_(window.series)) if window.series else chunks
