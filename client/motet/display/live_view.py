"""Live terminal view of a task: a progress bar, a line per job, the validation curves."""

import math
import textwrap
import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from contract.states import JOB_TERMINAL, ExitReason, JobStatus, TaskStatus
from contract.wording.config_labels import HEADINGS, cell
from motet.api.resources import Job
from motet.display.durations import starts
from motet.display.task_state import TaskState
from motet.display.terminal_plot import Frame, braille, sparkline

_COLOURS = ("cyan", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta", "bright_blue")
_LEADER = "bold green"
_STATUS_STYLES = {
    JobStatus.PENDING: "dim",
    JobStatus.WARMUP: "yellow",
    JobStatus.PARKED: "blue",
    JobStatus.TRAINING: "cyan",
    JobStatus.COMPLETED: "green",
    JobStatus.EXITED: "dim",
    JobStatus.FAILED: "red",
    JobStatus.CANCELLED: "dim",
}
_BEFORE = {
    TaskStatus.VALIDATING: "checking the files",
    TaskStatus.QUEUED: "waiting for a worker",
    TaskStatus.RUNNING: "loading the base and reading the rows",
}
_WIDE, _BAR = 96, 12  # minimum columns for a bar per job, and the bar's own width
_NARROW = 72  # minimum columns for the training curve per job
_NEWS = 4  # lines of what happened last
_LEAST_PLOT, _TALLEST_PLOT = 4, 10  # rows


class LiveView:
    """Rendered anew for each frame from the view's current contents."""

    def __init__(self, view: TaskState) -> None:
        self._view = view
        self._began = time.monotonic()
        self._news: list[str] = []

    def with_news(self, news: Sequence[str]) -> RenderableType:
        """The view with the latest of what happened below it."""
        self._news = list(news)
        return self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        news = [row for line in self._news[-_NEWS:] for row in textwrap.wrap(line, options.max_width - 2)][-_NEWS:]
        room = console.size.height - 6 - len(news)
        jobs = self._chosen(room)
        left = room - len(jobs) - 3
        parts: list[RenderableType] = [self._header(), self._bar(options.max_width), self._jobs(jobs, options.max_width)]
        if len(jobs) < len(self._view.jobs):
            parts.append(Text(f"  and {len(self._view.jobs) - len(jobs)} more jobs", style="dim"))
        if left >= _LEAST_PLOT:
            parts += self._plot(jobs, min(options.max_width - 10, 100), min(left, _TALLEST_PLOT))
        parts += [Text(f"  {line}", style="dim") for line in news]
        yield Group(*parts)

    def _chosen(self, room: int) -> list[Job]:
        """The jobs that get a line: all if there is room, else the running and the best ones, in index order."""
        view = self._view
        if len(view.jobs) <= room:
            return list(view.jobs)
        by_interest = sorted(view.jobs, key=lambda job: (job.status in JOB_TERMINAL, *view.best_first(job)))
        return sorted(by_interest[: max(1, room - 1)], key=lambda job: job.index)

    def _header(self) -> Text:
        task = self._view.task
        line = Text.assemble((task.name or task.id, "bold"), "  ", (task.status.value, "cyan"))
        if task.placed is not None:
            line.append(f" on {task.placed.where}")
            if task.placed.tokens_per_second:
                line.append(f" · {task.placed.tokens_per_second:,.0f} tokens/s")
        elif task.waiting is not None and not task.ended:
            line.append(f" · {said}" if (said := starts(task.waiting)) else "")
        if task.samples.saved_fraction:
            line.append(f" · {task.samples.saved_fraction:.0%} of all samples saved")
        line.append(f" · {time.monotonic() - self._began:.0f} s", style="dim")
        return line

    def _bar(self, width: int) -> RenderableType:
        progress = self._view.task.progress
        grid = Table.grid(padding=(0, 1))
        total = progress.steps_total
        bar = ProgressBar(
            total=total or None, completed=progress.steps_done, width=max(10, min(60, width - 30)), pulse=not total
        )
        grid.add_row(
            bar, Text(f"{progress.steps_done:,} of {total:,} steps" if total else _BEFORE.get(self._view.task.status, ""))
        )
        return grid

    def _jobs(self, jobs: Sequence[Job], width: int) -> Table:
        wide, spark = width >= _WIDE, max(6, min(24, width - 66)) if width >= _NARROW else 0
        table = Table(box=None, padding=(0, 1), header_style="dim")
        axes = self._view.axes
        table.add_column("job", justify="right", no_wrap=True, min_width=3)
        for axis in axes:  # what tells the jobs apart is never cut
            texts = [HEADINGS[axis], *(cell(job.config, axis, self._view.digits) for job in jobs)]
            table.add_column(HEADINGS[axis], justify="right", no_wrap=True, min_width=max(map(len, texts)))
        table.add_column("status", no_wrap=True, min_width=max(map(len, ExitReason)))
        if wide:
            table.add_column("", width=_BAR)
        table.add_column("step", justify="right", no_wrap=True)
        if spark:
            table.add_column("training", width=spark, no_wrap=True)
        table.add_column("validation", justify="right", no_wrap=True)
        leader = self._view.leader
        for job in jobs:
            best = leader is not None and job.index == leader.index
            cells = self._job_cells(job, axes, wide, spark)
            table.add_row(*cells, style=_LEADER if best else _STATUS_STYLES[job.status])
        return table

    def _job_cells(self, job: Job, axes: Sequence[str], wide: bool, spark: int) -> list[RenderableType]:
        curve = self._view.curve(job.index, "train_loss")
        status = job.exit.reason.value if job.exit is not None else job.status.value
        total = job.total_steps
        loss = self._view.best(job)
        return [
            str(job.index),
            *(cell(job.config, axis, self._view.digits) if job.proposed else "?" for axis in axes),
            status,
            *([ProgressBar(total=total or 1, completed=job.step, width=_BAR)] if wide else []),
            f"{job.step}/{total}" if total else "",
            *([sparkline([curve[step] for step in sorted(curve)], spark)] if spark else []),
            f"{loss:.3f}" if math.isfinite(loss) else "",
        ]

    def _plot(self, jobs: Sequence[Job], width: int, height: int) -> list[RenderableType]:
        """Validation curves, the leader's on top, with the base's loss as a horizontal line."""
        view = self._view
        leader = view.leader
        shown = sorted(jobs, key=lambda job: leader is not None and job.index == leader.index)
        curves = [sorted(view.curve(job.index, "val_loss").items()) for job in shown]
        losses = [loss for curve in curves for _, loss in curve if math.isfinite(loss)]
        base = view.task.base_val_loss
        if not losses:
            return []
        known = [*losses, base] if base is not None else losses
        # what diverged is cut; the leader is in the picture though it is worse than the base
        low, high = min(known), 1.05 * max(base, min(losses)) if base is not None else max(losses)
        frame = Frame(0, max(job.total_steps or 1 for job in jobs), low - 0.05 * (high - low), high)
        level = [[(frame.right * at / width, base) for at in range(width + 1)]] if base is not None else []
        styles = ["dim"] * len(level) + [_LEADER if job is leader else _COLOURS[job.index % len(_COLOURS)] for job in shown]
        picture = braille([*level, *curves], frame, width, height)
        lines: list[RenderableType] = [Text("validation loss" + (" (base dim)" if level else ""), style="dim")]
        for row, cells in enumerate(picture):
            edge = f"{frame.high:8.2f} " if row == 0 else f"{frame.low:8.2f} " if row == height - 1 else " " * 9
            pieces = [(cell.character, styles[cell.series] if cell.series is not None else "") for cell in cells]
            lines.append(Text.assemble((edge, "dim"), *pieces))
        return [*lines, Text(f"{'step 0':>15}{frame.right:>{width - 6}.0f}", style="dim")]
