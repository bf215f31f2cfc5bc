"""The loss curves of a task, as far as no rewind has hidden them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.wire import Series
from service.errors import Invalid
from service.tasks.models import Job, PointChunk
from service.tenants.keys import Principal
from service.tenants.scope import Rows, scoped

MAX_POINTS = 500_000


class Curve(BaseModel):
    """One series of one job. A loss that was not finite is null."""

    job_id: str
    index: int
    series: Series
    steps: list[int]
    values: list[float | None]


class Metrics(BaseModel):
    object: Literal["metrics"] = "metrics"
    data: list[Curve] = Field(description="By job index, then series")


class TooManyPoints(Invalid):
    code, title = "too_many_points", "The answer would be too large"


@dataclass(frozen=True)
class Window:
    """Which points: of these jobs and series (all, where empty), from one step to another, both inclusive."""

    jobs: Sequence[int]
    series: Sequence[Series]
    from_step: int
    to_step: int | None


def curves(session: Session, principal: Principal, task_id: str, window: Window) -> Metrics:
    """The curves in index order. Raises TooManyPoints where they have more than MAX_POINTS points."""
    points = session.scalar(_chunks(select(func.sum(func.cardinality(PointChunk.steps))), principal, task_id, window))
    if points is not None and points > MAX_POINTS:
        message = f"{points} points are asked for, the limit is {MAX_POINTS}; narrow it with job, series, from_step or to_step"
        raise TooManyPoints([], message)
    found: dict[tuple[str, str], Curve] = {}
    columns = select(Job.id, Job.index, PointChunk.series, PointChunk.steps, PointChunk.values)
    ordered = _chunks(columns, principal, task_id, window).order_by(Job.index, PointChunk.series, PointChunk.first_step)
    for job_id, index, series, steps, values in session.execute(ordered):
        empty = Curve(job_id=job_id, index=index, series=series, steps=[], values=[])
        curve = found.setdefault((job_id, series), empty)
        for step, value in zip(steps, values, strict=True):
            if step >= window.from_step and (window.to_step is None or step <= window.to_step):
                curve.steps.append(step)
                curve.values.append(value if math.isfinite(value) else None)
    return Metrics(data=[curve for curve in found.values() if curve.steps])


def _chunks(columns: Rows, principal: Principal, task_id: str, window: Window) -> Rows:
    """The visible chunks that touch the window."""
    chunks = columns.select_from(PointChunk).join(Job, Job.id == PointChunk.job_id)
    chunks = scoped(chunks.where(Job.task_id == task_id, PointChunk.hidden_by.is_(None)), Job, principal)
    chunks = chunks.where(PointChunk.last_step >= window.from_step)
    if window.to_step is not None:
        chunks = chunks.where(PointChunk.first_step <= window.to_step)
    if window.jobs:
        chunks = chunks.where(Job.index.in_(window.jobs))
    return chunks.where(PointChunk.series.in_(window.series)) if window.series else chunks
