"""A claimed mirror's task as it is stored, and what of it is on the server. Each step is a transaction under the claim.

Points count up to a job's last checkpoint, and all of a job that has ended: a lost executor takes later ones back. A batch is
noted before it is sent and struck out once it is answered, so that one of unknown fate can be compared with what the server
has. It is sent again with the same times, by which MLflow's database knows points that it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, and_, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from contract.states import JOB_TERMINAL, TASK_TERMINAL, JobStatus, TaskStatus
from service.database.engine import Database, clock
from service.mirrors.mirror_claims import ClaimedMirror, record
from service.mirrors.mlflow_client import MOST_METRICS, Metric
from service.mirrors.models import MirroredRun, TaskMirror
from service.tasks.models import Job, PointChunk, Task

_CHUNKS = 16  # of points, read for a batch
_ALL = 2**31 - 1


@dataclass(frozen=True)
class MirroredJob:
    """A job that has started. limit: the last step whose points count. run_id: of its run, None before there is one."""

    id: str
    index: int
    config: Mapping[str, Any]
    status: JobStatus
    exit_reason: str | None
    best_step: int | None
    started: int
    ended: int | None
    limit: int
    run_id: str | None
    in_doubt: bool
    empty: bool  # no point of it is there


@dataclass(frozen=True)
class MirroredTask:
    """version: the task's, as of which all this is. ended: milliseconds since 1970, as all times here; None: it goes on.
    started: of its first job, None before. jobs: those that have more to send, in index order."""

    id: str
    name: str | None
    version: int
    status: TaskStatus
    base_model: str
    winner_job_id: str | None
    experiment: str
    tags: Mapping[str, str]
    experiment_id: str | None
    run_id: str | None
    started: int | None
    ended: int | None
    jobs: Sequence[MirroredJob]


@dataclass(frozen=True)
class PointBatch:
    """Points of one job's run to send, by series and step. first: nothing of it was sent before."""

    metrics: Sequence[Metric]
    first: bool


class TaskReader:
    def __init__(self, db: Database, claimed: ClaimedMirror) -> None:
        self._db, self._claimed = db, claimed

    def task(self) -> MirroredTask:
        """Raises ClaimLost."""
        with self._db.begin() as session:
            record(session, self._claimed)
            mirror = session.get_one(TaskMirror, self._claimed.id)
            row = session.get_one(Task, self._claimed.task_id)
            runs = {run.job_id: run for run in session.scalars(select(MirroredRun).where(MirroredRun.mirror_id == mirror.id))}
            started = select(Job).where(Job.task_id == row.id, Job.started_at.is_not(None)).order_by(Job.index)
            jobs = [(_job(job, runs.get(job.id)), runs.get(job.id)) for job in session.scalars(started)]
            return MirroredTask(
                id=row.id,
                name=row.name,
                version=row.version,
                status=TaskStatus(row.status),
                base_model=row.base_model,
                winner_job_id=row.winner_job_id,
                experiment=mirror.experiment,
                tags=mirror.tags,
                experiment_id=mirror.experiment_id,
                run_id=mirror.run_id,
                started=min((job.started for job, _ in jobs), default=None),
                ended=_milliseconds(row.ended_at) if row.status in TASK_TERMINAL and row.ended_at is not None else None,
                jobs=[job for job, run in jobs if run is None or not _all_there(job, run)],
            )

    def note_experiment(self, experiment_id: str) -> None:
        """Raises ClaimLost, as all that follow do."""
        self._record(experiment_id=experiment_id)

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
            if run.in_doubt is not None:
                there = {key: min(step, max(last_steps.get(key, -1), -1)) for key, step in run.in_doubt["through"].items()}
                _note_sent(session, run, _points(session, run, run.in_doubt["at"], there))

    def next_batch(self, job: MirroredJob) -> PointBatch | None:
        """The job's next points, noted as in doubt; None where all that count were sent. What is left of an earlier batch in
        doubt comes first."""
        with self._db.begin() as session:
            record(session, self._claimed)
            run, metrics = _run(session, self._claimed, job), list[Metric]()
            if run.in_doubt is not None:
                metrics = _points(session, run, run.in_doubt["at"], run.in_doubt["through"])
            if not metrics:
                metrics = _points(session, run, _milliseconds(clock(session)), None, job.limit)
                run.in_doubt = {"at": metrics[0].at, "through": {one.key: one.step for one in metrics}} if metrics else None
            if metrics:
                return PointBatch(metrics, first=not run.sent)
            run.through = job.limit
            return None

    def note_sent(self, job: MirroredJob, batch: PointBatch) -> None:
        with self._db.begin() as session:
            record(session, self._claimed)
            run = _run(session, self._claimed, job)
            _note_sent(session, run, batch.metrics)
            run.in_doubt = None

    def note_ended(self, job: MirroredJob) -> None:
        with self._db.begin() as session:
            record(session, self._claimed)
            _run(session, self._claimed, job).ended = True

    def _record(self, **values: Any) -> None:
        with self._db.begin() as session:
            record(session, self._claimed, **values)


def _run(session: Session, claimed: ClaimedMirror, job: MirroredJob) -> MirroredRun:
    return session.get_one(MirroredRun, (claimed.id, job.id))


def _all_there(job: MirroredJob, run: MirroredRun) -> bool:
    return run.ended or (job.ended is None and run.in_doubt is None and job.limit <= run.through)


def _job(job: Job, run: MirroredRun | None) -> MirroredJob:
    ended = job.status in JOB_TERMINAL
    assert job.started_at is not None  # the caller asked for these
    return MirroredJob(
        id=job.id,
        index=job.index,
        config=job.config,
        status=JobStatus(job.status),
        exit_reason=job.exit_reason,
        best_step=job.best_step,
        started=_milliseconds(job.started_at),
        ended=_milliseconds(job.ended_at) if ended and job.ended_at is not None else None,
        limit=_ALL if ended else (job.checkpoint or {}).get("step", -1),
        run_id=run.run_id if run is not None else None,
        in_doubt=run is not None and run.in_doubt is not None,
        empty=run is None or not run.sent,
    )


def _points(session: Session, run: MirroredRun, at: int, through: Mapping[str, int] | None, limit: int = _ALL) -> list[Metric]:
    """The run's first points, at most a batch, that were not sent: of the series in `through` up to its steps, or of all up to
    `limit`."""
    last = func.coalesce(literal(run.sent, JSONB)[PointChunk.series].astext.cast(Integer), -1)
    chunks = select(PointChunk.series, PointChunk.steps, PointChunk.values)
    chunks = chunks.where(PointChunk.job_id == run.job_id, PointChunk.hidden_by.is_(None), PointChunk.last_step > last)
    if through is None:
        chunks = chunks.where(PointChunk.first_step <= limit)
    else:
        of_series = [and_(PointChunk.series == key, PointChunk.first_step <= step) for key, step in through.items()]
        chunks = chunks.where(or_(*of_series))
    found = list[Metric]()
    for key, steps, values in session.execute(chunks.order_by(PointChunk.series, PointChunk.first_step).limit(_CHUNKS)):
        most = limit if through is None else through[key]
        after = run.sent.get(key, -1)
        found += (Metric(key, step, value, at) for step, value in zip(steps, values, strict=True) if after < step <= most)
    return found[:MOST_METRICS]


def _note_sent(session: Session, run: MirroredRun, metrics: Sequence[Metric]) -> None:
    run.sent = run.sent | {one.key: one.step for one in metrics}
    more = update(TaskMirror).where(TaskMirror.id == run.mirror_id).values(points=TaskMirror.points + len(metrics))
    session.execute(more.execution_options(synchronize_session=False))


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
