"""Tables of tasks, jobs and nodes: values in, rich tables out. Knows no service."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from motet.api.resources import Job, Node, Schedule, Task
from motet.commands.task_view import View, why

OTHERS = "(another tenant's)"
_WIDE = 110  # minimum columns for a job's line to say why it ended


def tasks_table(tasks: Iterable[Task]) -> Table:
    """One line per task, and one more for why it waits."""
    table = _table("task", "name", "status", "steps", "jobs", "best validation loss", "created", "why it waits")
    for task in tasks:
        progress = task.progress
        table.add_row(
            task.id,
            Text(task.name or "", overflow="fold"),
            task.status.value,
            f"{progress.steps_done}/{progress.steps_total}" if progress.steps_total is not None else "",
            str(sum(task.jobs.values())),
            f"{task.winner.val_loss:.4f}" if task.winner is not None else "",
            _ago(task.created_at),
            Text(_waits(task), overflow="fold"),
        )
    return table


def running_table(schedule: Schedule) -> Table:
    """Each node with its running tasks and their expected ends."""
    table = _table("node", "GPUs", "free", "runs", "until")
    for node in schedule.nodes:
        name = f"{node.name} (drained)" if node.drained else node.name
        gpus = f"{node.gpus} x {node.device_type}"
        table.add_row(
            name,
            gpus,
            str(node.free),
            "\n".join(f"{one.task_id or OTHERS} on {one.gpus}{' (leaving)' if one.leaving else ''}" for one in node.running),
            "\n".join(_in(one.expected_end) for one in node.running),
        )
    return table


def waiting_table(schedule: Schedule) -> Table:
    """The queue in the order in which tasks are expected to start."""
    table = _table("place", "task", "GPUs", "starts", "ends", "why")
    for one in schedule.waiting:
        table.add_row(
            str(one.place or ""),
            one.task_id or OTHERS,
            str(one.gpus),
            _in(one.expected_start),
            _in(one.expected_end),
            Text(one.sentence or "", overflow="fold"),
        )
    return table


def jobs_table(view: View, width: int, jobs: Sequence[Job] | None = None) -> Table:
    """Each job's configuration, steps, end and best validation loss, and why it ended if `width` allows; the winner is
    highlighted."""
    told = ["why"] if width >= _WIDE else []
    table = _table("job", "configuration", "steps", "end", "best val loss", *told)
    for column in table.columns[:5]:
        column.no_wrap = True
    winner = view.task.winner
    for job in view.jobs if jobs is None else jobs:
        best = view.best(job)
        table.add_row(
            str(job.index),
            view.label(job.config),
            f"{job.step}/{job.total_steps}" if job.total_steps is not None else str(job.step),
            job.exit.reason if job.exit is not None else job.status,
            f"{best:.4f}" if math.isfinite(best) else "",
            *([_why(job)] if told else []),
            style="bold green" if winner is not None and winner.index == job.index else "",
        )
    return table


def nodes_table(nodes: Iterable[Node]) -> Table:
    table = _table("node", "status", "devices", "tokens/s of a device", "runs", "last heartbeat")
    for node in nodes:
        types = sorted({device.type for device in node.devices})
        counts = [f"{sum(device.type == type for device in node.devices)} x {type}" for type in types]
        speeds = [f"{speed:,.0f} ({model})" for model, speed in node.tokens_per_second.items()]
        running = ", ".join(one.task_id for one in node.running)
        table.add_row(
            node.name,
            node.status,
            ", ".join(counts),
            ", ".join(speeds),
            running,
            _ago(node.heartbeat_at) if node.heartbeat_at else "",
        )
    return table


def _why(job: Job) -> Text:
    """Why the job ended, without markup parsing: an error message may contain brackets."""
    return Text(why(job.exit) if job.exit is not None else job.error or "", overflow="fold")


def _waits(task: Task) -> str:
    if task.waiting is None or task.ended:
        return ""
    start = f" (expected to start {_in(task.waiting.expected_start)})" if task.waiting.expected_start is not None else ""
    return task.waiting.sentence + start


def _in(moment: datetime | None) -> str:
    """Time until `moment`."""
    if moment is None:
        return ""
    seconds = max(0.0, (moment - datetime.now(UTC)).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"in {seconds / size:.0f} {unit}"
    return f"in {seconds:.0f} s"


def _ago(moment: datetime) -> str:
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table
