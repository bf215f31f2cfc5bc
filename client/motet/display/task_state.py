"""The state of a watched task: the task, its jobs, their curves, and what changed since the last refresh.

Asks the client, returns values and sentences. Knows no terminal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contract.compatibility.lenient_documents import have_one
from contract.job_config import JobConfig
from contract.states import JOB_TERMINAL, JobStatus, TaskStatus
from contract.wording.config_labels import Digits, digits_of, label, varying
from contract.wording.exit_sentences import exit_sentence
from motet.api.client import Client
from motet.api.resources import Exit, Job, Task
from motet.display.durations import starts

Curve = dict[int, float]  # step -> loss; a non-finite loss is NaN


@dataclass
class TaskState:
    """One thread refreshes it in place; `jobs` and `curves` are replaced whole, so that another thread may draw them
    meanwhile."""

    task: Task
    jobs: Sequence[Job] = ()
    curves: Mapping[tuple[int, str], Curve] = field(default_factory=dict)
    _apart: tuple[Sequence[Job], tuple[list[str], Digits]] | None = None
    _told_wait: str | None = None  # code of the reason that was told

    def refresh(self, client: Client, task: Task) -> list[str]:
        """Update to the task's current state; returns one sentence per change."""
        before, known = self.task, {job.index: job for job in self.jobs}
        jobs = client.tasks.jobs(task.id)
        self.curves = self._curves(client, jobs)
        self.task, self.jobs = task, jobs
        news = self._wait_news() + ([] if not known and task.status == before.status else _task_news(before, task))
        return news + [said for job in jobs if (said := self._job_news(known.get(job.index), job)) is not None]

    def _wait_news(self) -> list[str]:
        """Why the task waits, once for each reason: place and times are in every summary. A task that no plan has looked at
        yet gives none."""
        waiting = self.task.waiting if self.task.status == TaskStatus.QUEUED else None
        code, self._told_wait = self._told_wait, waiting.code if waiting is not None else None
        told = waiting is None or waiting.code in (code, "not_planned")
        return [] if waiting is None or told or not waiting.sentence else [waiting.sentence]

    def curve(self, index: int, series: str) -> Curve:
        return self.curves.get((index, series), {})

    @property
    def leader(self) -> Job | None:
        """The winner, or before there is one the job with the lowest validation loss so far; none in a DPO search over beta,
        whose losses cannot be compared."""
        evaluated = [job for job in self.jobs if job.best_val_loss is not None or self.curve(job.index, "val_loss")]
        first = min(evaluated, key=self.best_first, default=None)
        if first is None or self._wins(first):
            return first
        return first if have_one((job.config for job in self.jobs), "beta") else None

    def best_first(self, job: Job) -> tuple[bool, float, int]:
        """The sort key of a table of jobs: the winner, then by loss."""
        return not self._wins(job), self.best(job), job.index

    def _wins(self, job: Job) -> bool:
        return self.task.winner is not None and self.task.winner.index == job.index

    def best(self, job: Job) -> float:
        """The job's lowest validation loss so far; infinite if there is none. Of an ended job it is that of its full
        evaluation, which reads more rows than its trend."""
        if job.status in JOB_TERMINAL and job.best_val_loss is not None:
            return job.best_val_loss
        seen = [loss for loss in self.curve(job.index, "val_loss").values() if math.isfinite(loss)]
        return min([*seen, job.best_val_loss if job.best_val_loss is not None else math.inf])

    def label(self, config: JobConfig) -> str:
        """A short label for the configuration: the fields that vary within the task, and always the learning rate."""
        return label(config, self.axes, self.digits)

    @property
    def axes(self) -> list[str]:
        """The fields in which the jobs differ."""
        return self._told_apart()[0]

    @property
    def digits(self) -> Digits:
        """As few as tell the jobs' numbers apart."""
        return self._told_apart()[1]

    def _told_apart(self) -> tuple[list[str], Digits]:
        """Computed once for the jobs at hand, though each of them asks."""
        if self._apart is None or self._apart[0] is not self.jobs:
            configs = [job.config for job in self.jobs]
            self._apart = (self.jobs, (varying(configs), digits_of(configs)))
        return self._apart[1]

    def summary(self) -> str:
        """The task's state in one line."""
        task, progress = self.task, self.task.progress
        parts = [task.status.value]
        if task.waiting is not None and task.status == TaskStatus.QUEUED:
            parts += [f"place {task.waiting.place}"] if task.waiting.place is not None else []
            parts += [said] if (said := starts(task.waiting)) else []
        if task.status == TaskStatus.RUNNING and progress.steps_total is None:
            parts.append("the worker loads the base and reads the rows")
        if progress.steps_total:
            parts.append(f"{progress.steps_done:,} of {progress.steps_total:,} steps")
        parts += [f"{count} {status.value}" for status, count in task.jobs.items() if count and status in _TOLD]
        leader = self.leader
        if leader is not None and math.isfinite(self.best(leader)):
            parts.append(f"best validation loss {self.best(leader):.3f} (job {leader.index}{self._rows_read(leader)})")
        if task.placed is not None and task.placed.tokens_per_second:
            parts.append(f"{task.placed.tokens_per_second:,.0f} tokens/s")
        return " · ".join(parts)

    def _rows_read(self, job: Job) -> str:
        """How many of the validation rows the best loss of a job that trains is of, where it is not of all."""
        trend, rows = self.task.rows.trend, self.task.rows.validation
        return "" if job.status in JOB_TERMINAL or trend is None or trend == rows else f", on {trend} of {rows} rows"

    @property
    def _selects(self) -> bool:
        """Whether the task's policy ranks its jobs after warmup, and there are others to rank a job with."""
        policy = self.task.spec.get("early_exit") or {}
        return len(self.jobs) > 1 and bool(policy.get("policy") != "none")

    def _curves(self, client: Client, jobs: Sequence[Job]) -> Mapping[tuple[int, str], Curve]:
        """The curves known so far, truncated where a job was rewound, plus new points of the jobs that moved."""
        steps = {job.index: job.step for job in jobs}
        kept = {
            key: {step: loss for step, loss in curve.items() if step <= steps[key[0]]} for key, curve in self.curves.items()
        }
        last = {job.index: max(kept.get((job.index, "train_loss"), {0: 0.0})) for job in jobs}
        moved = [index for index, step in steps.items() if step > last[index]]
        if moved:
            for found in client.tasks.metrics(jobs[0].task_id, jobs=moved, from_step=min(last[index] for index in moved)):
                points = zip(found.steps, found.values, strict=True)
                curve = kept.setdefault((found.index, found.series), {})
                curve.update((step, math.nan if loss is None else loss) for step, loss in points)
        return kept

    def _job_news(self, before: Job | None, job: Job) -> str | None:
        if before is not None and before.status == job.status:
            return None
        name = f"job {job.index} ({self.label(job.config)})"
        match job.status:
            case JobStatus.EXITED if job.exit is not None:
                return f"{name} exited at step {job.exit.step}, {job.exit.reason}: {why(job.exit)}"
            case JobStatus.COMPLETED:
                loss = f", best validation loss {job.best_val_loss:.3f}" if job.best_val_loss is not None else ""
                return f"{name} completed its {job.step} steps{loss}"
            case JobStatus.FAILED:
                return f"{name} failed at step {job.step}: {job.error}"
            case JobStatus.TRAINING if job.promoted and job.step and self._selects:
                return f"{name} passed the selection after warmup"
        return None


_TOLD = (JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING, *sorted(JOB_TERMINAL))


def _task_news(before: Task, task: Task) -> list[str]:
    news = []
    if task.base_val_loss is not None and before.base_val_loss is None:
        news.append(f"the base alone has validation loss {task.base_val_loss:.3f}")
    if task.rows.cut_sentence != before.rows.cut_sentence:
        news.append(task.rows.cut_sentence)
    if task.rows.overlap_sentence != before.rows.overlap_sentence:
        news.append(task.rows.overlap_sentence)
    if task.status != before.status and not task.ended:  # how it ended is told after its last job
        where = f" on {task.placement.where}" if task.placement is not None else ""
        why_back = f" ({task.requeue_reason})" if task.status == "queued" and task.requeue_reason else ""
        news.append(f"{task.status}{where}{why_back}")
    return news


def why(exit: Exit) -> str:
    return exit_sentence(exit.reason, exit.evidence)
