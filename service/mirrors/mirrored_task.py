"""A claimed mirror's task as it is stored, and what of it is on the server. Each step is a transaction under the claim.

Points count up to a job's last checkpoint, and all of a job that has ended: a lost executor takes later ones back. A batch is
noted before it is sent and struck out once it is answered, so that one of unknown fate can be compared with what the server
has, or sent again just as it was. A row that cannot be read fails the visit for good, and nothing of it is written.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, TypeVar, get_args

from sqlalchemy import Integer, and_, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from contract.messages.report_messages import Series
from contract.states import JOB_TERMINAL, TASK_TERMINAL, JobStatus, TaskStatus
from service.database.checked_json import ResultUnreadable, UnreadValue, readable, required
from service.database.engine import Database, clock
from service.mirrors.mirror_claims import ClaimedMirror, record
from service.mirrors.models import InDoubt, MirroredRun, Position, TaskMirror
from service.mirrors.tracker import MOST_POINTS, CallFailed, Metric, MirroredJob, MirroredTask, PointBatch
from service.tasks.models import Job, PointChunk, Task

_CHUNKS = 2 * len(get_args(Series)) + 4  # of points, read for a batch; of each series one may be sent in part
_ALL = 2**31 - 1

T = TypeVar("T")


class TaskReader:
    def __init__(self, db: Database, claimed: ClaimedMirror) -> None:
        self._db, self._claimed = db, claimed

    def task(self, beat: timedelta | None = None) -> MirroredTask:
        """beat: its jobs are also those that go on and of which the server has heard nothing for so long. Raises ClaimLost, and
        CallFailed where a row cannot be read, as all that follow do."""
        with self._db.begin() as session:
            record(session, self._claimed)
            mirror = session.get_one(TaskMirror, self._claimed.id)
            row = session.get_one(Task, self._claimed.task_id)
            runs = {run.job_id: run for run in session.scalars(select(MirroredRun).where(MirroredRun.mirror_id == mirror.id))}
            all_jobs = list(session.scalars(select(Job).where(Job.task_id == row.id).order_by(Job.index)))
            jobs = [(_job(job, runs.get(job.id)), runs.get(job.id)) for job in all_jobs if job.started_at is not None]
            heard = _milliseconds(clock(session) - beat) if beat is not None else 0
            return MirroredTask(
                id=row.id,
                name=row.name,
                version=row.version,
                status=TaskStatus(row.status),
                base_model=row.base_model,
                winner_job_id=row.winner_job_id,
                experiment=mirror.experiment,
                tags=_read(mirror.tags),
                options=_read(mirror.options).model_dump(),
                place=mirror.entity if mirror.type == "wandb" else mirror.experiment_id,
                run_id=mirror.run_id,
                started=min((job.started for job, _ in jobs), default=None),
                ended=_milliseconds(row.ended_at) if row.status in TASK_TERMINAL and row.ended_at is not None else None,
                job_count=len(all_jobs),
                jobs=[job for job, run in jobs if run is None or not _all_there(job, run, heard)],
            )

    def note_place(self, place: str) -> None:
        """Of its runs there."""
        self._record(**{"entity" if self._claimed.type == "wandb" else "experiment_id": place})

    def note_run(self, run_id: str, job: MirroredJob | None) -> None:
        """A job's run, or the task's own."""
        if job is None:
            self._record(run_id=run_id)
            return
        with self._db.begin() as session:
            record(session, self._claimed)
            tenant = session.get_one(TaskMirror, self._claimed.id).tenant_id
            session.add(MirroredRun(mirror_id=self._claimed.id, job_id=job.id, tenant_id=tenant, run_id=run_id, sent={}))

    def settle(self, job: MirroredJob, last_steps: Mapping[str, int]) -> None:
        """Take for sent what the server has of the batch in doubt, by its last step of each series: the points of a series are
        sent in the order of their steps, so those before the last one are there."""
        with self._db.begin() as session:
            record(session, self._claimed)
            run = _run(session, self._claimed, job)
            if (doubt := _read(run.in_doubt)) is not None:
                there = {key: min(step, max(last_steps.get(key, -1), -1)) for key, step in doubt.through.items()}
                _note_sent(session, run, _points(session, run, doubt.at, there))

    def next_batch(self, job: MirroredJob) -> PointBatch | None:
        """The job's next points, noted as in doubt; None where all that count were sent. What is left of an earlier batch in
        doubt comes first."""
        with self._db.begin() as session:
            record(session, self._claimed)
            run, metrics = _run(session, self._claimed, job), list[Metric]()
            if (doubt := _read(run.in_doubt)) is not None:
                metrics = _points(session, run, doubt.at, doubt.through)
            if not metrics:
                metrics = _points(session, run, _milliseconds(clock(session)), None, job.limit)
                through = {one.key: one.step for one in metrics}
                run.in_doubt = InDoubt(at=metrics[0].at, through=through) if metrics else None
            if metrics:
                return PointBatch(metrics, first=not _read(run.sent))
            run.through = job.limit
            return None

    def note_sent(self, job: MirroredJob, batch: PointBatch) -> None:
        """job: with its position after the batch."""
        with self._db.begin() as session:
            record(session, self._claimed)
            run = _run(session, self._claimed, job)
            _note_sent(session, run, batch.metrics)
            run.in_doubt, run.position = None, Position(**{**job.position, "heard": _milliseconds(clock(session))})

    def note_beat(self, job: MirroredJob) -> None:
        with self._db.begin() as session:
            record(session, self._claimed)
            run = _run(session, self._claimed, job)
            run.position = _read(run.position).model_copy(update={"heard": _milliseconds(clock(session))})

    def note_ended(self, job: MirroredJob) -> None:
        with self._db.begin() as session:
            record(session, self._claimed)
            _run(session, self._claimed, job).ended = True

    def _record(self, **values: Any) -> None:
        with self._db.begin() as session:
            record(session, self._claimed, **values)


def _read(value: T | UnreadValue) -> T:
    """Raises CallFailed."""
    try:
        return required(value)
    except ResultUnreadable as error:
        said = f"{error}. Once an operator has written it anew, a change of the tracking server begins anew."
        raise CallFailed(said, final=True) from None


def _run(session: Session, claimed: ClaimedMirror, job: MirroredJob) -> MirroredRun:
    return session.get_one(MirroredRun, (claimed.id, job.id))


def _all_there(job: MirroredJob, run: MirroredRun, heard: int) -> bool:
    """heard: since then the server must have heard of a job that goes on."""
    if run.ended:
        return True
    told = not job.in_doubt and job.limit <= run.through and _read(run.position).heard >= heard
    return job.ended is None and told


def _job(job: Job, run: MirroredRun | None) -> MirroredJob:
    ended, unfinished = job.status in JOB_TERMINAL, run if run is not None and not run.ended else None
    assert job.started_at is not None  # the caller asked for these
    return MirroredJob(
        id=job.id,
        index=job.index,
        config=job.config,
        status=JobStatus(job.status),
        exit_reason=job.exit_reason,
        best_step=job.best_step,
        best_val_loss=job.best_val_loss,
        started=_milliseconds(job.started_at),
        ended=_milliseconds(job.ended_at) if ended and job.ended_at is not None else None,
        limit=_ALL if ended else _checkpointed(job),
        run_id=run.run_id if run is not None else None,
        in_doubt=unfinished is not None and _read(unfinished.in_doubt) is not None,
        empty=unfinished is None or not _read(unfinished.sent),
        position=_read(unfinished.position).model_dump(exclude_unset=True) if unfinished is not None else {},
    )


def _checkpointed(job: Job) -> int:
    """The step of the job's checkpoint; -1 before the first, and where it cannot be read."""
    found = readable(job.checkpoint)
    return found.step if found is not None else -1


def _points(session: Session, run: MirroredRun, at: int, through: Mapping[str, int] | None, limit: int = _ALL) -> list[Metric]:
    """The run's first points, at most a batch, that were not sent, by step: of the series in `through` up to its steps, or of
    all up to `limit`."""
    sent = _read(run.sent)
    last = func.coalesce(literal(sent, JSONB)[PointChunk.series].astext.cast(Integer), -1)
    chunks = select(PointChunk.series, PointChunk.first_step, PointChunk.steps, PointChunk.values)
    chunks = chunks.where(PointChunk.job_id == run.job_id, PointChunk.hidden_by.is_(None), PointChunk.last_step > last)
    if through is None:
        chunks = chunks.where(PointChunk.first_step <= limit)
    else:
        of_series = [and_(PointChunk.series == key, PointChunk.first_step <= step) for key, step in through.items()]
        chunks = chunks.where(or_(*of_series))
    rows = session.execute(chunks.order_by(PointChunk.first_step, PointChunk.series).limit(_CHUNKS + 1)).all()
    whole = rows[_CHUNKS].first_step - 1 if len(rows) > _CHUNKS else _ALL  # the last step of which all series were read
    found = list[Metric]()
    for key, _, steps, values in rows[:_CHUNKS]:
        most = min(whole, limit if through is None else through[key])
        after = sent.get(key, -1)
        found += (Metric(key, step, value, at) for step, value in zip(steps, values, strict=True) if after < step <= most)
    return _first(sorted(found, key=lambda point: (point.step, point.key)))


def _first(points: Sequence[Metric]) -> list[Metric]:
    """At most a batch of them, the last step of which is whole."""
    if len(points) <= MOST_POINTS:
        return list(points)
    cut = points[MOST_POINTS].step
    return list(takewhile(lambda point: point.step < cut, points))


def _note_sent(session: Session, run: MirroredRun, metrics: Sequence[Metric]) -> None:
    run.sent = _read(run.sent) | {one.key: one.step for one in metrics}
    more = update(TaskMirror).where(TaskMirror.id == run.mirror_id).values(points=TaskMirror.points + len(metrics))
    session.execute(more.execution_options(synchronize_session=False))


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
