"""Rows of the task list: a task's resource, and beside it the best loss so far, its course, and when the task should end."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from contract.states import ExitReason, JobStatus, TaskStatus
from service.database.engine import among_ids
from service.fleet.models import Placement
from service.tasks.curves.curve_reader import val_losses
from service.tasks.models import Job, Task
from service.tasks.resource import TaskResource, render
from service.tasks.stored_specs import part
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped
from service.web.views.sparkline import Sparkline, sparkline

SORTS = ("newest", "name", "best", "progress", "ends")


@dataclass(frozen=True)
class BarSegment:
    """A part of a jobs bar: `x` and `width` in per cent."""

    kind: str
    jobs: int
    x: float
    width: float


@dataclass(frozen=True)
class TaskRow:
    task: TaskResource
    jobs: int
    bar: list[BarSegment]
    best: float | None
    course: Sparkline | None
    done: float | None  # part of the steps, 0 to 1
    ends: datetime | None
    why: str | None  # it waits, in a sentence


def task_rows(session: Session, principal: Principal, tasks: Sequence[Task]) -> list[TaskRow]:
    """The tasks' rows in the same order; the number of queries does not depend on how many there are."""
    ids = {"ids": [task.id for task in tasks]}
    leaders = _leaders(session, principal, tasks)
    courses = val_losses(session, principal, [row.id for row in leaders.values()])
    reasons: dict[str, dict[str, int]] = defaultdict(dict)
    exits = select(Job.task_id, Job.exit_reason, func.count()).where(among_ids(Job.task_id), Job.exit_reason.is_not(None))
    for task_id, reason, number in session.execute(scoped(exits, Job, principal).group_by(Job.task_id, Job.exit_reason), ids):
        reasons[task_id][str(reason)] = number
    ends = _planned_ends(session, [task.id for task in tasks])
    found = []
    for one in render(session, tasks):
        leader = leaders.get(one.id)
        found.append(
            TaskRow(
                task=one,
                jobs=sum(one.jobs.values()),
                bar=jobs_bar(one.jobs, reasons[one.id]),
                best=leader.best_val_loss if leader is not None else None,
                course=sparkline(courses.get(leader.id, [])) if leader is not None else None,
                done=progress(one),
                ends=expected_end(one, ends.get(one.id)),
                why=(one.waiting or {}).get("sentence") if one.status in (TaskStatus.QUEUED, TaskStatus.PAUSED) else None,
            )
        )
    return found


def _leaders(session: Session, principal: Principal, tasks: Sequence[Task]) -> dict[str, Any]:
    """The best job of each task that has one, as `service.tasks.best_job` chooses it."""
    best = select(Job.task_id, Job.id, Job.best_val_loss).join(Task, Task.id == Job.task_id)
    best = best.where(among_ids(Job.task_id), Job.best_val_loss.is_not(None)).ext(distinct_on(Job.task_id))
    best = best.order_by(Job.task_id, case((Job.id == Task.winner_job_id, 0), else_=1), Job.best_val_loss, Job.index)
    undecided = [task.id for task in tasks if task.winner_job_id is None and part(task, "objective").get("type") == "dpo"]
    betas = select(Job.task_id).where(among_ids(Job.task_id)).group_by(Job.task_id)
    betas = betas.having(func.count(func.distinct(Job.config["beta"])) > 1)
    apart = set(session.scalars(scoped(betas, Job, principal), {"ids": undecided})) if undecided else set()
    told = session.execute(scoped(best, Job, principal), {"ids": [task.id for task in tasks if task.id not in apart]})
    return {row.task_id: row for row in told}


_ENDS = select(Placement.task_id, Placement.expected_end).where(among_ids(Placement.task_id), Placement.ended_at.is_(None))


def _planned_ends(session: Session, ids: list[str]) -> dict[str, datetime | None]:
    return {task_id: end for task_id, end in session.execute(_ENDS, {"ids": ids})}


def planned_end(session: Session, task_id: str) -> datetime | None:
    """When the plan in force expects a running task to end."""
    return _planned_ends(session, [task_id]).get(task_id)


def expected_end(task: TaskResource, planned: datetime | None) -> datetime | None:
    if task.status == TaskStatus.RUNNING:
        return planned
    said = (task.waiting or {}).get("expected_end") if task.status == TaskStatus.QUEUED else None
    return datetime.fromisoformat(said) if said else None


def progress(task: TaskResource) -> float | None:
    """The part of its optimizer steps that is done, 0 to 1."""
    steps = task.progress
    return min(1.0, steps.steps_done / steps.steps_total) if steps.steps_total else None


def jobs_bar(jobs: dict[JobStatus, int], exits: dict[str, int]) -> list[BarSegment]:
    """The jobs as a bar: done, at work, parked, stopped early by reason, failed, cancelled, still to come."""
    kinds = {
        "completed": jobs[JobStatus.COMPLETED],
        "training": jobs[JobStatus.WARMUP] + jobs[JobStatus.TRAINING],
        "parked": jobs[JobStatus.PARKED],
        **{reason.value: exits.get(reason.value, 0) for reason in ExitReason},
        "failed": jobs[JobStatus.FAILED],
        "cancelled": jobs[JobStatus.CANCELLED],
        "pending": jobs[JobStatus.PENDING],
    }
    total, x, found = sum(kinds.values()) or 1, 0.0, []
    for kind, number in kinds.items():
        if number:
            width = 100 * number / total
            found.append(BarSegment(kind, number, round(x, 2), round(width, 2)))
            x += width
    return found


def ordered(rows: list[TaskRow], sort: str) -> list[TaskRow]:
    """The page's rows by this column; those without a value come last."""
    last = float("inf")
    keys = {
        "name": lambda row: (row.task.name is None, (row.task.name or row.task.id).lower()),
        "best": lambda row: row.best if row.best is not None else last,
        "progress": lambda row: -row.done if row.done is not None else 1,
        "ends": lambda row: row.ends.timestamp() if row.ends is not None else last,
    }
    return sorted(rows, key=keys[sort]) if sort in keys else rows
