"""Rewinds a task that leaves its node: each unfinished job returns to its checkpoint, and points beyond it are hidden.

Callers hold the task's row lock and have ended its placement. Ended jobs keep their points, verdicts and adapters.
"""

from sqlalchemy import delete
from sqlalchemy.orm import Session

from contract.states import JOB_TERMINAL, JobStatus, RequeueReason, TaskStatus
from service.adapters.models import Adapter
from service.database.checked_json import required
from service.database.engine import clock
from service.tasks.curves.curve_reader import best_point
from service.tasks.curves.curve_writer import hide_after
from service.tasks.lifecycle.conclusion import conclude, fail_unfinished
from service.tasks.lifecycle.event_log import EventKind, record
from service.tasks.lifecycle.transitions import enter, rewind_job
from service.tasks.models import Job, Task
from service.tasks.stored_specs import part
from service.usage.trained_rows import batch_size_of, rows_trained
from service.usage.usage_ledger import take_back


def rewind(session: Session, task: Task, reason: RequeueReason, detail: str = "", hopeless: str | None = None) -> None:
    """Raise the fence, and move the running task to its desired status (default: queued) with its jobs at their checkpoints.

    With `hopeless`, fail the task for that reason instead: it would crash executors again and again (see
    fleet.node_health.node_faults).
    """
    if hopeless is not None:
        fail_unfinished(task, hopeless)
        conclude(session, task, hopeless, fenced=True)
        return
    boundary = part(task, "early_exit").get("policy") != "none"  # read leniently: unreadable specs must be rewound too
    trained = _rows(task)
    for job in task.jobs:
        if job.status not in JOB_TERMINAL:
            before = job.step, job.status
            step = _back(session, job, boundary, task.fence + 1)
            if (job.step, job.status) != before:  # one at its checkpoint loses nothing
                record(session, task, EventKind.REWIND, {"job": job.index, "step": step, "status": job.status})
    kept = _rows(task)
    take_back(session, task, kept, trained - kept)
    then = TaskStatus(task.desired_status or TaskStatus.QUEUED)
    enter(task, then, clock(session), requeue_reason=reason, requeue_detail=detail or None)


def _rows(task: Task) -> int:
    """Training rows of all steps that still count; none of a job whose configuration cannot be read."""
    return sum(rows_trained(job.step, batch_size_of(job.config), task.train_rows or 0) for job in task.jobs)


def _back(session: Session, job: Job, has_boundary: bool, fence: int) -> int:
    """Rewind one job. Returns the last step that still counts; -1 if none does."""
    checkpoint = required(job.checkpoint, f"job {job.index}: ")
    step = checkpoint.step if checkpoint is not None else None
    status = status_at(job, step, has_boundary)
    rewind_job(job, status)
    kept = -1 if step is None else step
    hide_after(session, job.id, kept, fence)
    session.execute(delete(Adapter).where(Adapter.job_id == job.id))  # an adapter stored for an end that was never reported
    job.step = step or 0
    if status in (JobStatus.PENDING, JobStatus.WARMUP) and not job.promoted:
        job.warmup_val_loss = job.boundary_scores = None
    best = best_point(session, job.id, "val_loss")
    job.best_step, job.best_val_loss = best if best else (None, None)
    return kept


def status_at(job: Job, step: int | None, has_boundary: bool) -> JobStatus:
    """The job's status when it had trained `step` steps (None: before its first checkpoint)."""
    if step is None:
        return JobStatus.PENDING
    if job.promoted:  # one that an earlier rewind took to its start may be before its boundary again, where it is not ranked
        return JobStatus.TRAINING if job.status == JobStatus.TRAINING else JobStatus.WARMUP
    at_boundary = (
        has_boundary and job.warmup_steps is not None and job.warmup_steps <= step and job.warmup_steps != job.total_steps
    )
    return JobStatus.PARKED if at_boundary and job.warmup_val_loss is not None else JobStatus.WARMUP
