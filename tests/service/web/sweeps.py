"""A running sweep's rows, as reports would have written them: jobs at work, stopped and done, with curves."""

import math
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from service.database.engine import Database
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.event_log import EventKind, record
from service.tasks.models import Job, Task
from tests.service.sample_tasks import chunk, jobs_of


def begin(database: Database, task_id: str, steps: int = 40, total: int = 100) -> None:
    """Put the task at work: each job has trained so far, the last one stopped early, the first one is done."""
    with database.begin() as session:
        task = session.get_one(Task, task_id)
        task.status, task.started_at, task.train_rows, task.base_val_loss = "running", datetime.now(UTC), 400, 3.0
        jobs = jobs_of(session, task_id)
        for job in jobs:
            job.total_steps, job.warmup_steps, job.status, job.step = total, total // 10, "training", steps
            job.promoted, job.warmup_val_loss = True, 2.5 + 0.1 * job.index
            curve(session, job, 1, steps)
        last, first = jobs[-1], jobs[0]
        last.status, last.exit_reason, last.exit_evidence = "exited", "diverging", {"slope": 0.5}
        first.status, first.step = "completed", total
        for job in (first, last):
            record(
                session,
                task,
                EventKind.JOB,
                {"job": job.index, "status": job.status, "step": job.step, "exit_reason": "diverging"},
            )
        bump_version_and_notify(session, task)


def curve(session: Session, job: Job, first: int, last: int) -> None:
    """Training losses of these steps, and a validation loss every tenth."""
    steps = list(range(first, last + 1))
    chunk(session, job, "train_loss", steps, [loss(job, step) for step in steps])
    val = [step for step in steps if step % 10 == 0]
    if val:
        values = [loss(job, step) + 0.05 for step in val]
        chunk(session, job, "val_loss", val, values)
        if job.best_val_loss is None or min(values) < job.best_val_loss:
            job.best_val_loss, job.best_step = min(values), val[values.index(min(values))]


def loss(job: Job, step: int) -> float:
    return 1.0 + 0.2 * job.index + 2.0 * math.exp(-step / 30)


def go_on(database: Database, task_id: str, index: int, first: int, last: int) -> None:
    """The job trains on, and its task's event log says so."""
    with database.begin() as session:
        task = session.get_one(Task, task_id, with_for_update=True)
        job = jobs_of(session, task_id)[index]
        curve(session, job, first, last)
        job.step = last
        told = {"job": index, "series": "train_loss", "from_step": first, "to_step": last, "last": loss(job, last)}
        record(session, task, EventKind.CURVES, {"curves": [told]})
        bump_version_and_notify(session, task)


def end(database: Database, task_id: str) -> None:
    with database.begin() as session:
        task = session.get_one(Task, task_id, with_for_update=True)
        for job in jobs_of(session, task_id):
            job.status = "exited" if job.exit_reason else "completed"
        task.status, task.ended_at = "succeeded", datetime.now(UTC)
        bump_version_and_notify(session, task)
