"""Writes loss curves: appends points in chunks, each step once, hides points on a rewind, and stores summaries of final curves.
Knows no statuses and no reports.

Callers hold the row lock of the jobs' task.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session

from service.database.binary_arrays import Doubles, Integers
from service.tasks.curves.downsampling import BUCKETS, Buckets, summary_of, width_for
from service.tasks.models import CurveSummary, PointChunk

CHUNK = 256  # points
_NONE = -(2**31)  # before every step
_Key = tuple[str, str]  # job id, series


class StepRepeated(ValueError):
    """The series already has a point at this step or a later one."""

    def __init__(self, series: str, step: int, last: int) -> None:
        super().__init__(f"{series} at step {step} comes after step {last} was kept; every step is reported once, in order")


@dataclass
class _Tail:
    """The last visible chunk of a series, and the points to append after it."""

    chunk_id: int | None = None
    room: int = 0
    last_step: int | None = None
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Curves:
    """Appends points to curves named by job id and series; `flush` writes all of them in two statements."""

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
        """Buffer points; NaN is a valid value. Raises StepRepeated unless the steps ascend from beyond the series' last one."""
        tail = self._tails[job_id, series]
        before = [_NONE if tail.last_step is None else tail.last_step, *steps[:-1]]
        if any(map(operator.le, steps, before)):
            step, last = next(pair for pair in zip(steps, before, strict=True) if pair[0] <= pair[1])
            raise StepRepeated(series, step, last)
        tail.last_step = steps[-1]
        tail.steps += steps
        tail.values += values

    def flush(self) -> None:
        """Write the buffered points, once per instance: into the last chunks while they have room, then into new ones."""
        grown, made = _Rows(), _Rows()
        for (job_id, series), tail in self._tails.items():
            steps, values = tail.steps, tail.values
            if tail.room > 0 and steps:
                grown.add((tail.chunk_id,), steps[: tail.room], values[: tail.room])
                steps, values = steps[tail.room :], values[tail.room :]
            for at in range(0, len(steps), CHUNK):
                made.add((job_id, series), steps[at : at + CHUNK], values[at : at + CHUNK])
        for statement, names, rows in ((_GROW, ("chunks",), grown), (_MAKE, ("jobs", "series"), made)):
            if rows.keys:
                keys = dict(zip(names, map(list, zip(*rows.keys, strict=True)), strict=True))
                self._session.execute(statement, keys | rows.parameters())


@dataclass
class _Rows:
    """Column arrays for one statement: a key per row, all points concatenated, and the index range of each row's points."""

    keys: list[tuple[Any, ...]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, key: tuple[Any, ...], steps: list[int], values: list[float]) -> None:
        self.keys.append(key)
        self.firsts.append(len(self.steps) + 1)  # Postgres counts from 1
        self.steps += steps
        self.values += values
        self.lasts.append(len(self.steps))

    def parameters(self) -> dict[str, Any]:
        all_points = {"steps": Integers.of(self.steps), "values": Doubles.of(self.values)}
        return all_points | {"firsts": self.firsts, "lasts": self.lasts}


# a descending index scan with limit 1 per curve: its cost does not depend on the curve's length
_NEWEST = text(
    """SELECT k.job_id, k.series, c.id, c.last_step, cardinality(c.steps)
    FROM unnest(CAST(:jobs AS varchar[]), CAST(:series AS varchar[])) AS k(job_id, series)
    CROSS JOIN LATERAL (
        SELECT id, last_step, steps FROM point_chunks p
        WHERE p.job_id = k.job_id AND p.series = k.series AND p.hidden_by IS NULL ORDER BY p.first_step DESC LIMIT 1
    ) AS c"""
)
_GROW = text(
    """WITH given AS MATERIALIZED (SELECT CAST(:steps AS integer[]) AS steps, CAST(:values AS double precision[]) AS "values")
    UPDATE point_chunks p SET steps = p.steps || given.steps[n.first:n.last], last_step = given.steps[n.last],
        "values" = p."values" || given."values"[n.first:n.last]
    FROM given, unnest(CAST(:chunks AS bigint[]), CAST(:firsts AS integer[]), CAST(:lasts AS integer[]))
        AS n(chunk, first, last)
    WHERE p.id = n.chunk"""
)
_MAKE = text(
    """WITH given AS MATERIALIZED (SELECT CAST(:steps AS integer[]) AS steps, CAST(:values AS double precision[]) AS "values")
    INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
    SELECT n.job_id, n.series, given.steps[n.first], given.steps[n.last],
        given.steps[n.first:n.last], given."values"[n.first:n.last]
    FROM given, unnest(CAST(:jobs AS varchar[]), CAST(:series AS varchar[]),
        CAST(:firsts AS integer[]), CAST(:lasts AS integer[])) AS n(job_id, series, first, last)"""
)


def hide_after(session: Session, job_id: str, step: int, fence: int) -> None:
    """Hide every point of the job after `step` (-1: all); a chunk that spans `step` is split there."""
    visible = (PointChunk.job_id == job_id, PointChunk.hidden_by.is_(None))
    across = select(PointChunk).where(*visible, PointChunk.first_step <= step, PointChunk.last_step > step)
    for chunk in session.scalars(across.with_for_update()):
        kept = sum(1 for s in chunk.steps if s <= step)
        hidden = _chunk(job_id, chunk.series, chunk.steps[kept:], chunk.values[kept:])
        session.add(PointChunk(**hidden, hidden_by=fence))
        chunk.steps, chunk.values, chunk.last_step = chunk.steps[:kept], chunk.values[:kept], chunk.steps[kept - 1]
    session.flush()
    session.execute(update(PointChunk).where(*visible, PointChunk.first_step > step).values(hidden_by=fence))


def summarise(session: Session, job_id: str) -> None:
    """Store a summary of each series of an ended job, whose curves are final."""
    chunks = select(PointChunk).where(PointChunk.job_id == job_id, PointChunk.hidden_by.is_(None))
    series: dict[str, list[PointChunk]] = {}
    for chunk in session.scalars(chunks.order_by(PointChunk.series, PointChunk.first_step)):
        series.setdefault(chunk.series, []).append(chunk)
    session.execute(delete(CurveSummary).where(CurveSummary.job_id == job_id))
    for name, parts in series.items():
        curve = Buckets(width_for(parts[-1].last_step + 1, BUCKETS))
        for part in parts:
            curve.points(part.steps, part.values)
        session.add(summary_of(job_id, name, curve))


def _chunk(job_id: str, series: str, steps: list[int], values: list[float]) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "series": series,
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": steps,
        "values": values,
    }
