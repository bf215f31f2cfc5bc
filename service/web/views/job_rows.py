"""A task's jobs as a table, as the plot reads them, and what early exit saved. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.compatibility.lenient_documents import value_of
from contract.job_config import JobConfig
from contract.states import JOB_TERMINAL, ExitReason, JobStatus
from contract.wording.config_labels import (
    ALL_DIGITS,
    HEADINGS,
    MAIN,
    TO_BE_PROPOSED,
    Digits,
    cell,
    digits_of,
    label,
    varying,
    winner_label,
)
from contract.wording.exit_sentences import exit_sentence
from contract.wording.step_words import mean_of_steps
from service.adapters.resource import AdapterResource
from service.tasks.best_job import best_first, best_job, losses_comparable
from service.tasks.job_resource import JobResource
from service.tasks.resource import TaskResource
from service.usage.trained_rows import rows_trained
from service.web.views.formats import with_title
from service.web.views.importance import Worth, worths

EXIT_WORDS = {
    ExitReason.DIVERGING: "its loss diverged",
    ExitReason.OVERFITTING: "it overfitted",
    ExitReason.UNDERPERFORMING: "others were better",
}
_FIXED = ("index", "status", "step", "best", "exit")


@dataclass(frozen=True)
class JobRow:
    job: JobResource
    label: str
    whole_label: str  # with all digits
    cells: list[str]  # with all digits on hover
    facts: dict[str, Any]  # what the plots read
    why: str  # it stopped early; empty if it did not

    @property
    def ended(self) -> bool:
        return self.job.status in JOB_TERMINAL


@dataclass(frozen=True)
class JobTable:
    """`names` are the hyperparameters that differ, `headings` their columns' titles."""

    names: list[str]
    headings: list[str]
    rows: list[JobRow]
    best: JobRow | None
    sort: str

    @property
    def sorts(self) -> tuple[str, ...]:
        return (*_FIXED, *self.names)


def job_table(jobs: Sequence[JobResource], sort: str, winner_job_id: str | None) -> JobTable:
    """The jobs ordered by a column: a fixed one or a hyperparameter's; unknown columns mean the best first."""
    names = varying([job.config for job in jobs]) if jobs else []
    found = best_job(jobs, winner_job_id)
    digits = digits_of(job.config for job in jobs)
    rows = [_row(job, names, digits, job is found) for job in jobs]
    best = next((row for row in rows if row.job is found), None)
    sort = sort if sort in (*_FIXED, *names) else "best"
    ordered = sorted(rows, key=lambda row: best_first(row.job, winner_job_id) if sort == "best" else _key(row.job, sort))
    return JobTable(names, [HEADINGS[name] for name in names], ordered, best, sort)


def _row(job: JobResource, names: Sequence[str], digits: Digits, leads: bool) -> JobRow:
    config: JobConfig = job.config
    said = label(config, names, digits) if job.proposed else TO_BE_PROPOSED
    shown = {name: cell(config, name, digits) for name in names}
    facts = {
        "job": job.index,
        "label": said,
        "status": job.status.value,
        "step": job.step,
        "total": job.total_steps,
        "warmup": job.warmup_steps,
        "warmup_loss": job.warmup_val_loss,
        "warmup_score": job.warmup_score,
        "promoted": job.promoted,
        "exit": job.exit.reason.value if job.exit is not None else None,
        "best": job.best_val_loss,
        "leads": leads,
        "best_step": job.best_step,
        "config": {name: _plain(value_of(config, name), text) for name, text in shown.items()},
        "shown": shown,
    }
    why = exit_sentence(job.exit.reason, job.exit.evidence) if job.exit is not None else ""
    cells = [with_title(text, cell(config, name, ALL_DIGITS)) if job.proposed else "" for name, text in shown.items()]
    whole = label(config, names, ALL_DIGITS) if job.proposed else said
    return JobRow(job, said, whole, cells, facts, why)


def _plain(value: Any, shown: str) -> float | str | None:
    """A number to place on an axis, or the word that stands for it."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else shown or None


def _key(job: JobResource, sort: str) -> tuple[Any, ...]:
    match sort:
        case "index":
            return (job.index,)
        case "status":
            return (list(JobStatus).index(job.status), job.index)
        case "step":
            return (-job.step, job.index)
        case "exit":
            return (job.exit is None, job.exit.reason.value if job.exit is not None else "", job.index)
    value = value_of(job.config, sort)
    number = isinstance(value, int | float)
    return (value is None, not number, value if number else str(value), job.index)


def winners_words(task: TaskResource, jobs: Sequence[JobResource]) -> str | None:
    """The verdict on the winner, with its configuration, and which steps its adapter is from where that is not its last."""
    if task.selection is None:
        return None
    job = next((job for job in jobs if task.winner is not None and job.id == task.winner.job_id), None)
    if task.winner is None or job is None:
        return f"{_as_a_sentence(task.selection.verdict)}."
    told = f"job {job.index} ({winner_label(job.config, [one.config for one in jobs])})"
    said = _as_a_sentence(re.sub(rf"\bjob {job.index}\b", lambda _: told, task.selection.verdict, count=1)) + "."
    if job.averaged_steps:
        said += f" Its adapter is the {mean_of_steps(job.averaged_steps)}."
    if task.winner.step >= job.step:
        return said
    said += f" Its own loss was lowest after step {task.winner.step} of {job.total_steps or job.step}"
    evaluated = job.status in (JobStatus.COMPLETED, JobStatus.EXITED)  # after its last step, as the others may not have been
    return said + (", and rose afterwards." if evaluated else ".")


def _as_a_sentence(said: str) -> str:
    return said[:1].upper() + said[1:]


@dataclass(frozen=True)
class AdapterRow:
    """A stored adapter: of which task (None: uploaded), with which configuration, and whether it is its task's winner."""

    adapter: AdapterResource
    task: str | None
    label: str
    whole_label: str  # with all digits
    wins: bool


def adapter_rows(adapters: Sequence[AdapterResource], tasks: Mapping[str, tuple[str | None, str | None]]) -> list[AdapterRow]:
    """tasks: by id the name and the job that won."""
    digits = digits_of(one.lineage.config for one in adapters if one.lineage is not None)
    return [_adapter_row(one, digits, *tasks.get(one.task_id or "", (None, None))) for one in adapters]


def _adapter_row(adapter: AdapterResource, digits: Digits, task: str | None, winner_job_id: str | None) -> AdapterRow:
    if adapter.lineage is not None:
        config = adapter.lineage.config
        said, whole = (label(config, MAIN, shown) for shown in (digits, ALL_DIGITS))
        return AdapterRow(adapter, task or adapter.task_id, said, whole, adapter.job_id == winner_job_id)
    settings = adapter.settings
    words = f"rank {settings.rank}, {', '.join(settings.target_modules or ())}" if settings is not None else ""
    return AdapterRow(adapter, None, words, words, False)


def importance(table: JobTable) -> list[Worth]:
    """Nothing where the losses cannot be compared."""
    if not losses_comparable([row.job for row in table.rows]):
        return []
    configs = [{name: row.facts["config"][name] for name in table.names} for row in table.rows]
    return worths(configs, [row.job.best_val_loss for row in table.rows], table.names)


@dataclass(frozen=True)
class Saved:
    """What jobs that stopped for this reason would still have trained, as a part of the whole search."""

    reason: str
    words: str
    jobs: int
    part: float


def saved_by_reason(task: TaskResource, jobs: Sequence[JobResource]) -> list[Saved]:
    rows, found = task.rows.train or 0, []
    for reason, words in EXIT_WORDS.items():
        stopped = [job for job in jobs if job.exit is not None and job.exit.reason == reason]
        spared = sum(
            rows_trained(job.total_steps or job.step, batch, rows) - rows_trained(job.step, batch, rows)
            for job in stopped
            if (batch := value_of(job.config, "batch_size")) is not None
        )
        if stopped:
            found.append(Saved(reason.value, words, len(stopped), spared / task.samples.full if task.samples.full else 0.0))
    return found
