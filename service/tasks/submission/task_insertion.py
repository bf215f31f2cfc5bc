"""Inserts new tasks, their jobs and their first events, and so sets the first status and fence.

lifecycle/transitions.py writes each status after that. Checks no spec, knows no quota and no HTTP.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import text
from sqlalchemy.orm import Session

from contract.states import JobStatus, TaskStatus
from contract.task_spec import TaskSpec
from service.database.engine import new_id
from service.database.prepared_statements import PreparedStatement
from service.tasks.lifecycle.event_log import EventKind
from service.tasks.models import Task

_COLUMNS = {
    **dict.fromkeys(("id", "tenant_id", "name", "status", "base_model", "base_revision", "train_file_id"), "varchar"),
    **dict.fromkeys(("validation_file_id", "prompts_file_id", "request_id", "traceparent", "made_by", "batch_id"), "varchar"),
    **dict.fromkeys(("gpus", "priority", "version"), "integer"),
    **dict.fromkeys(("spec", "spec_defaults", "labels"), "jsonb"),
}  # columns of a new task, each with its Postgres type
# The column `losses` counts lost executors (`Task.lost_executors`).
_INSERT = PreparedStatement(
    text(
        f"""WITH new_tasks AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:tasks AS jsonb))
            AS new_tasks({", ".join(f"{name} {type_}" for name, type_ in _COLUMNS.items())}, jobs jsonb, drawn integer)
    ), bases AS MATERIALIZED (
        SELECT name, revision FROM base_models WHERE enabled AND name IN (SELECT base_model FROM new_tasks) FOR KEY SHARE
    ), inserted AS (
        INSERT INTO tasks ({", ".join(_COLUMNS)}, fence, losses, last_event, told_status)
        SELECT {", ".join(f"new_tasks.{name}" for name in _COLUMNS)}, 0, 0, 1, new_tasks.status
        FROM new_tasks JOIN bases ON bases.name = new_tasks.base_model AND bases.revision = new_tasks.base_revision
        ORDER BY new_tasks.id
        RETURNING id, tenant_id, status, created_at
    ), new_events AS (
        INSERT INTO task_events (task_id, number, tenant_id, kind, data)
        SELECT id, 1, tenant_id, '{EventKind.STATUS}', jsonb_build_object('status', status) FROM inserted
    ), new_jobs AS (
        INSERT INTO jobs (id, tenant_id, task_id, index, config, proposed, status, step, promoted)
        SELECT job.one->>'id', inserted.tenant_id, inserted.id, job.at - 1, job.one->'config', job.at <= new_tasks.drawn,
            '{JobStatus.PENDING}', 0, false
        FROM new_tasks JOIN inserted USING (id), jsonb_array_elements(jobs) WITH ORDINALITY AS job(one, at)
    )
    SELECT id, created_at FROM inserted"""
    )
)


def new_task(**columns: Any) -> Task:
    """A task in its first status, `validating`, which `insert_tasks` has still to store."""
    return Task(id=new_id("task"), status=TaskStatus.VALIDATING, version=1, **columns)


@dataclass(frozen=True)
class NewJobs:
    """A task's configurations, in order. drawn: how many of them, the first, will not be replaced by proposed ones."""

    configs: list[dict[str, Any]]
    drawn: int

    @classmethod
    def of(cls, spec: TaskSpec) -> Self:
        return cls([config.model_dump(mode="json") for config in spec.jobs()], len(spec.search_space.rounds[0]))


def insert_tasks(session: Session, new: Sequence[tuple[Task, NewJobs]]) -> None:
    """Insert new tasks, each with its jobs, and their first events in one statement: row by row, a burst took several times as
    long. Sets each task's `created_at`; the objects stay outside the session. One whose base was removed, or
    got another revision, since it was checked is not inserted, and has none: bases are locked against that from here on."""
    rows = {task.id: task for task, _ in new}
    tasks = [
        {name: getattr(task, name) for name in _COLUMNS}
        | {"jobs": [{"id": new_id("job"), "config": config} for config in jobs.configs], "drawn": jobs.drawn}
        for task, jobs in new
    ]
    for task_id, when in _INSERT.run(session.connection(), {"tasks": json.dumps(tasks)}):
        rows[task_id].created_at = when
