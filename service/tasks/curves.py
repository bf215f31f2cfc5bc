"""Writing loss curves: points in chunks, each step once, and what a rewind takes back. Knows no statuses and no reports.

Callers hold the row lock of the task whose jobs these are.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Subquery, bindparam, func, insert, select, text, update
from sqlalchemy.orm import Session

from service.tasks.models import PointChunk

CHUNK = 256  # points
_Key = tuple[str, str]  # job id, series


class StepRepeated(ValueError):
    """A point of this series at this or a later step is already kept."""

    def __init__(self, series: str, step: int, last: int) -> None:
        super().__init__(f"{series} at step {step} comes after step {last} was kept; every step is reported once, in order")


@dataclass
class _Tail:
    """The last visible chunk of a series, and the points to come after it."""

    chunk_id: int | None = None
    room: int = 0
    last_step: int | None = None
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Curves:
    """Appends to some curves, named by job id and series; `flush` writes them in two statements, however many there are."""

    def __init__(self, session: Session, keys: Iterable[_Key]) -> None:
        self._session = session
        wanted = sorted(set(keys))
        self._tails = {key: _Tail() for key in wanted}
        if not wanted:
            return
        jobs, series = [job_id for job_id, _ in wanted], [name for _, name in wanted]
        for job_id, name, chunk_id, last_step, points in session.execute(_NEWEST, {"jobs": jobs, "series": series}):
            self._tails[job_id, name] = _Tail(chunk_id, CHUNK - points, last_step)

    def append(self, job_id: str, series: str, steps: Sequence[int], values: Sequence[float]) -> None:
        """Add points; NaN is a value. Raises StepRepeated where the steps do not ascend beyond the last one kept."""
        tail = self._tails[job_id, series]
        last = tail.last_step
        for step in steps:
            if last is not None and step <= last:
                raise StepRepeated(series, step, last)
            last = step
        tail.last_step = last
        tail.steps += steps
        tail.values += values

    def flush(self) -> None:
        """Write what was appended, once: into the last chunks while they have room, then into new ones."""
        grown: list[dict[str, Any]] = []
        made: list[dict[str, Any]] = []
        for (job_id, series), tail in self._tails.items():
            steps, values = tail.steps, tail.values
            if tail.room > 0 and steps:
                head, headed = steps[: tail.room], values[: tail.room]
                grown.append({"chunk": tail.chunk_id, "more_steps": head, "more_values": headed, "last": head[-1]})
                steps, values = steps[tail.room :], values[tail.room :]
            for at in range(0, len(steps), CHUNK):
                made.append(_chunk(job_id, series, steps[at : at + CHUNK], values[at : at + CHUNK]))
        if grown:
            self._session.connection().execute(_GROW, grown)
        if made:
            self._session.execute(insert(PointChunk), made)


# one step down the index of each curve, however long it has become
_NEWEST = text(
    """SELECT k.job_id, k.series, c.id, c.last_step, cardinality(c.steps)
    FROM unnest(CAST(:jobs AS varchar[]), CAST(:series AS varchar[])) AS k(job_id, series)
    CROSS JOIN LATERAL (
        SELECT id, last_step, steps FROM point_chunks p
        WHERE p.job_id = k.job_id AND p.series = k.series AND p.hidden_by IS NULL ORDER BY p.first_step DESC LIMIT 1
    ) AS c"""
)
_GROW = (
    update(PointChunk.__table__)  # type: ignore[arg-type]
    .where(PointChunk.id == bindparam("chunk"))
    .values(
        steps=func.array_cat(PointChunk.steps, bindparam("more_steps", type_=PointChunk.steps.type)),
        values=func.array_cat(PointChunk.values, bindparam("more_values", type_=PointChunk.values.type)),
        last_step=bindparam("last"),
    )
)


def hide_after(session: Session, job_id: str, step: int, fence: int) -> None:
    """Hide every point of the job beyond `step` (-1: all of them); a chunk that holds both kinds is split there."""
    visible = (PointChunk.job_id == job_id, PointChunk.hidden_by.is_(None))
    across = select(PointChunk).where(*visible, PointChunk.first_step <= step, PointChunk.last_step > step)
    for chunk in session.scalars(across.with_for_update()):
        kept = sum(1 for s in chunk.steps if s <= step)
        hidden = _chunk(job_id, chunk.series, chunk.steps[kept:], chunk.values[kept:])
        session.add(PointChunk(**hidden, hidden_by=fence))
        chunk.steps, chunk.values, chunk.last_step = chunk.steps[:kept], chunk.values[:kept], chunk.steps[kept - 1]
    session.flush()
    session.execute(update(PointChunk).where(*visible, PointChunk.first_step > step).values(hidden_by=fence))


def best_point(session: Session, job_id: str, series: str) -> tuple[int, float] | None:
    """The step and value of the lowest finite visible point, the earliest of equals."""
    points = _points(job_id, series)
    finite = select(points.c.step, points.c.value).where(points.c.value < float("inf"), points.c.value > float("-inf"))
    found = session.execute(finite.order_by(points.c.value, points.c.step).limit(1)).one_or_none()
    return (found.step, found.value) if found else None


def values_at(session: Session, job_id: str, series: str, steps: Sequence[int]) -> list[float]:
    """The visible values at those of `steps`, ascending, that have one."""
    points = _points(job_id, series)
    return list(session.scalars(select(points.c.value).where(points.c.step.in_(steps)).order_by(points.c.step)))


def _points(job_id: str, series: str) -> Subquery:
    """The visible points of a series: columns step and value."""
    step, value = func.unnest(PointChunk.steps).label("step"), func.unnest(PointChunk.values).label("value")
    visible = (PointChunk.job_id == job_id, PointChunk.series == series, PointChunk.hidden_by.is_(None))
    return select(step, value).where(*visible).subquery()


def _chunk(job_id: str, series: str, steps: list[int], values: list[float]) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "series": series,
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": steps,
        "values": values,
    }
