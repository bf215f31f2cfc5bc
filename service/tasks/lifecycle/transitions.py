"""Writes the statuses of stored tasks and jobs; contract/states.py has the table of what is allowed.

Every change of a status or a fence is made here: for one row by the ORM (`enter`, `enter_job`, `rewind_job`), for a set of rows
by one SQL statement (`SetTransition`, `cancel_jobs`), both from the tables below. submission/task_insertion.py inserts new
tasks. Callers hold the tasks' row locks. Knows no HTTP, no plan and no reader.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import text, update
from sqlalchemy.orm import Session

from contract.states import (
    JOB_REWINDS,
    JOB_TERMINAL,
    JOB_TRANSITIONS,
    TASK_TERMINAL,
    IllegalTransition,
    JobStatus,
    TaskStatus,
    check_job,
    check_task,
)
from service.database.engine import CHANNEL
from service.database.prepared_statements import PreparedStatement
from service.tasks.lifecycle.change_notices import IDS_PER_NOTICE
from service.tasks.lifecycle.event_log import STATUS_FIELDS, EventKind
from service.tasks.models import Job, Task
from service.tasks.plan_status import unplanned_reasons
from service.webhooks.webhook_messages import types_of


class TimeColumn(Enum):
    """A column that gets the time of the transition: NOW always, FIRST only if it is empty."""

    NOW = "{time}"
    FIRST = "coalesce({column}, {time})"


ColumnWrites = Mapping[str, Any]  # what a row gets, by column: a TimeColumn, None, or a value

_ENDED: ColumnWrites = {"ended_at": TimeColumn.NOW, "waiting": None, "desired_status": None}
ON_TASK_ENTER: Mapping[TaskStatus, ColumnWrites] = {
    TaskStatus.QUEUED: {"queued_at": TimeColumn.NOW, "waiting": unplanned_reasons.not_planned(), "desired_status": None},
    TaskStatus.PAUSED: {"waiting": unplanned_reasons.paused_by_owner(), "desired_status": None},
    TaskStatus.RUNNING: {"started_at": TimeColumn.FIRST, "waiting": None},
    **dict.fromkeys(TASK_TERMINAL, _ENDED),
}
# transitions after which an older placement's writes count no more; a task that ends by its own report keeps its fence, since
# the executor's last report may still follow
_RAISES_FENCE = {
    *((before, TaskStatus.CANCELLED) for before in TaskStatus),
    *((TaskStatus.RUNNING, after) for after in (TaskStatus.QUEUED, TaskStatus.PAUSED)),
    (TaskStatus.QUEUED, TaskStatus.PAUSED),
    (TaskStatus.QUEUED, TaskStatus.RUNNING),
}
_JOB_ENDED: ColumnWrites = {"ended_at": TimeColumn.NOW, "checkpoint": None}
ON_JOB_ENTER: Mapping[JobStatus, ColumnWrites] = {
    JobStatus.WARMUP: {"started_at": TimeColumn.FIRST},
    JobStatus.PARKED: {"started_at": TimeColumn.FIRST},
    JobStatus.TRAINING: {"started_at": TimeColumn.FIRST, "promoted": True},
    **dict.fromkeys(JOB_TERMINAL, _JOB_ENDED),
}

# ---- one row ---------------------------------------------------------------------------------------------------------


def enter(task: Task, status: TaskStatus, now: datetime, fenced: bool = False, **columns: Any) -> None:
    """Move the task to `status`, with `columns` beside what the status itself writes. `fenced`: raise the fence in any case.

    The caller then calls bump_version_and_notify, once all changes of its transaction are made. Raises IllegalTransition.
    """
    before = TaskStatus(task.status)
    task.status = check_task(before, status)
    if fenced or (before, status) in _RAISES_FENCE:
        task.fence += 1
    _write(task, {**ON_TASK_ENTER[status], **columns}, now)


def enter_job(job: Job, status: JobStatus, now: Any) -> None:
    """Move the job to `status`. `now` is a time or SQL's clock. Raises IllegalTransition."""
    job.status = check_job(JobStatus(job.status), status)
    _write(job, ON_JOB_ENTER[status], now)


def rewind_job(job: Job, status: JobStatus) -> None:
    """Take an unfinished job back to the status that it had at its checkpoint. Raises IllegalTransition."""
    if status not in JOB_REWINDS[JobStatus(job.status)]:
        raise IllegalTransition(JobStatus(job.status), status)
    job.status = status
    if status == JobStatus.PENDING:
        job.started_at = None


def _write(row: Task | Job, writes: ColumnWrites, now: Any) -> None:
    for column, value in writes.items():
        if value is TimeColumn.NOW or (value is TimeColumn.FIRST and getattr(row, column) is None):
            setattr(row, column, now)
        elif value is not TimeColumn.FIRST:
            setattr(row, column, value)


# ---- sets of rows ----------------------------------------------------------------------------------------------------


def cancel_jobs(session: Session, task_id: str, now: datetime) -> None:
    """Cancel the task's unfinished jobs."""
    status = JobStatus.CANCELLED
    unfinished = [before for before, after in JOB_TRANSITIONS.items() if status in after]
    values = {column: now if value is TimeColumn.NOW else value for column, value in ON_JOB_ENTER[status].items()}
    session.execute(update(Job).where(Job.task_id == task_id, Job.status.in_(unfinished)).values(status=status, **values))


class CreatedBy(NamedTuple):
    """The request that created a task."""

    request_id: str | None
    traceparent: str | None


class SetTransition:
    """One transition of many tasks by one statement: as `enter` and `bump_version_and_notify` on each.

    Messages to webhooks are rows of their own, so a status that webhooks are told of is refused.
    """

    def __init__(self, before: TaskStatus, status: TaskStatus) -> None:
        if types_of(check_task(before, status)):
            raise ValueError(f"webhooks are told of {status}, so tasks enter it one by one")
        writes = ON_TASK_ENTER[status]
        fence = ["fence = tasks.fence + 1"] if (before, status) in _RAISES_FENCE else []
        written = [*fence, *(f"{column} = {_sql(column, value)}" for column, value in writes.items())]
        values = {column: json.dumps(value) for column, value in writes.items() if _given(value)}
        self._statement = PreparedStatement(
            text(
                f"""WITH locked AS (
                SELECT id FROM tasks
                WHERE id = ANY(CAST(:ids AS varchar[])) AND status = '{before}' AND desired_status IS NULL
                ORDER BY id FOR UPDATE
            ), moved AS (
                UPDATE tasks SET status = '{status}', told_status = '{status}', {", ".join(written)},
                    version = version + 1, last_event = last_event + 1
                FROM locked WHERE tasks.id = locked.id
                RETURNING tasks.id, tenant_id, request_id, traceparent, last_event,
                    {", ".join(c for c, _ in STATUS_FIELDS.values())}
            ), new_events AS (
                INSERT INTO task_events (task_id, number, tenant_id, kind, data)
                SELECT id, last_event, tenant_id, '{EventKind.STATUS}', {_told(status)} FROM moved
            )
            SELECT id, request_id, traceparent, (SELECT pg_notify('{CHANNEL}', string_agg(id, ' ')) FROM moved) FROM moved"""
            ).bindparams(**values)
        )

    def run(self, session: Session, ids: Sequence[str]) -> dict[str, CreatedBy]:
        """Move those of at most IDS_PER_NOTICE tasks that are in the first status and are not asked to become another one.

        Returns the requests that created the moved tasks, by task id.
        """
        if len(ids) > IDS_PER_NOTICE:
            raise ValueError(f"{len(ids)} tasks do not fit into one notice of {IDS_PER_NOTICE}")
        rows = self._statement.run(session.connection(), {"ids": list(ids)})
        return {task_id: CreatedBy(request_id, traceparent) for task_id, request_id, traceparent, _ in rows}


def _given(value: Any) -> bool:
    return value is not None and not isinstance(value, TimeColumn)


def _sql(column: str, value: Any) -> str:
    if isinstance(value, TimeColumn):
        return value.value.format(column=f"tasks.{column}", time="clock_timestamp()")
    return f"CAST(:{column} AS jsonb)" if _given(value) else "NULL"


def _told(status: TaskStatus) -> str:
    """A status event's data, as SQL over a row of tasks: as event_log.record_status writes for one object."""
    columns = {name: column for name, (column, only) in STATUS_FIELDS.items() if only is None or status == only}
    told = "".join(f", '{name}', {column}" for name, column in columns.items())
    return f"jsonb_strip_nulls(jsonb_build_object('status', '{status}'{told}))"


QUEUE_VALIDATED = SetTransition(TaskStatus.VALIDATING, TaskStatus.QUEUED)
