"""Ends a task after its last job has ended: picks the winner, or records the error. Callers hold the task's row lock."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.states import JOB_TERMINAL, JobStatus, TaskStatus
from service.adapters.models import Adapter
from service.database.engine import clock
from service.tasks.lifecycle.transitions import enter, enter_job
from service.tasks.models import Job, Task


def fail_unfinished(task: Task, error: str) -> None:
    """Fail every job that has not ended."""
    for job in task.jobs:
        if job.status not in JOB_TERMINAL:
            enter_job(job, JobStatus.FAILED, func.clock_timestamp())
            job.error = error


def conclude(session: Session, task: Task, error: str | None = None, fenced: bool = False) -> bool:
    """End the task if all its jobs have ended: the adapter with the lowest validation loss wins (ties: lower job index).

    `error` is why the task was stopped, if it was; `fenced`: its placement may report nothing more. Returns whether it ended.
    """
    if any(job.status not in JOB_TERMINAL for job in task.jobs):
        return False
    session.flush()
    kept = session.execute(select(Adapter.job_id, Adapter.val_loss).where(Adapter.task_id == task.id))
    losses = {job_id: loss for job_id, loss in kept}
    candidates = [job for job in task.jobs if job.id in losses]
    if candidates:
        winner = min(candidates, key=lambda job: (losses[job.id], job.index))
        enter(task, TaskStatus.SUCCEEDED, clock(session), fenced, winner_job_id=winner.id)
    else:
        enter(task, TaskStatus.FAILED, clock(session), fenced, error=error or _why(task.jobs))
    return True


def _why(jobs: list[Job]) -> str:
    failed = [job for job in jobs if job.status == JobStatus.FAILED]
    if not failed:
        return f"none of the {len(jobs)} jobs reached a finite validation loss, so there is no adapter to keep"
    first = f"job {failed[0].index}: {failed[0].error}"
    return f"{len(failed)} of {len(jobs)} jobs failed and no other kept an adapter; {first}"
