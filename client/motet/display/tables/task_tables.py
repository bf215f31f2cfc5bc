"""Lists of tasks, of their jobs, and of files: values in, tables out. Knows no service."""

import math
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.wording.config_labels import TO_BE_PROPOSED
from motet.api.resources import (
    File,
    Job,
    Task,
)
from motet.display.columns import Column, Columns
from motet.display.durations import ago, starts
from motet.display.task_state import TaskState, why


def tasks_table(tasks: Iterable[Task]) -> RenderableType:
    """One line per task; below, why each of them waits."""
    tasks = list(tasks)
    columns = (
        Column("task"),
        Column("name", need=3, folds=True),
        Column("status"),
        Column("steps", need=2, right=True),
        Column("jobs", need=5, right=True),
        Column("best loss", need=1, right=True),
        Column("created", need=4),
    )
    rows = [
        (
            task.id,
            task.name or "",
            task.status.value,
            f"{task.progress.steps_done}/{task.progress.steps_total}" if task.progress.steps_total is not None else "",
            str(sum(task.jobs.values())),
            f"{task.winner.val_loss:.4f}" if task.winner is not None else "",
            ago(task.created_at),
        )
        for task in tasks
    ]
    waits = [Text(f"{task.id} waits: {said}") for task in tasks if (said := waiting_words(task))]
    return Group(Columns(columns, rows), *([Text(), *waits] if waits else []))


def waiting_words(task: Task) -> str:
    """Why a task waits and when it starts; empty if it does not wait."""
    if task.placed is not None and (said := task.placed.waits_for or task.placed.loading):
        return said
    if task.waiting is None or task.ended:
        return ""
    start = starts(task.waiting)
    return f"{task.waiting.sentence} ({start})" if start else task.waiting.sentence


def jobs_table(view: TaskState, jobs: Sequence[Job] | None = None) -> RenderableType:
    """One line per job, in this order: configuration, progress, loss, and why it ended; the winner in bold."""
    columns = (
        Column("job", right=True),
        Column("configuration", folds=True),
        Column("steps", need=1, right=True),
        Column("end"),
        Column("best val loss", right=True),
        Column("why", need=2, folds=True),
    )
    shown = view.jobs if jobs is None else jobs
    winner = view.task.winner
    rows = [
        (
            str(job.index),
            view.label(job.config) if job.proposed else TO_BE_PROPOSED,
            f"{job.step}/{job.total_steps}" if job.total_steps is not None else str(job.step),
            job.exit.reason.value if job.exit is not None else job.status.value,
            f"{best:.4f}" if math.isfinite(best := view.best(job)) else "",
            why(job.exit) if job.exit is not None else job.error or "",
        )
        for job in shown
    ]
    styles = ["bold green" if winner is not None and winner.index == job.index else "" for job in shown]
    return Columns(columns, rows, styles)


def files_table(files: Iterable[File]) -> RenderableType:
    columns = (
        Column("file"),
        Column("name", need=1, folds=True),
        Column("rows", right=True),
        Column("bytes", need=2, right=True),
        Column("format", need=3),
        Column("uploaded", need=4),
    )
    rows = [(file.id, file.name, f"{file.rows:,}", f"{file.bytes:,}", file.format, ago(file.created_at)) for file in files]
    return Columns(columns, rows)
