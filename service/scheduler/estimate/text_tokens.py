"""The texts that a task's evaluation has yet to read and generate, at most. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from contract.states import JOB_TERMINAL
from contract.task_spec import TaskSpec
from service.scheduler.estimate.survival import ReportedProgress, unranked


@dataclass(frozen=True)
class TextWork:
    """Evaluations of texts that are still to come, of `prompts` texts each. read: mean tokens of a prompt with its answer;
    written: the most tokens of a text."""

    evaluations: float = 0.0
    prompts: int = 0
    read: float = 0.0
    written: int = 0

    @property
    def tokens(self) -> float:
        return self.evaluations * self.prompts * (self.read + self.written)


NO_TEXTS = TextWork()


def texts_due(spec: TaskSpec, jobs: Sequence[ReportedProgress], rows: int, tokens_per_row: float) -> TextWork:
    """Of the base before the first steps, of every job at its end and, where a text metric ranks jobs there, at the end of its
    warmup, and at the milestones of the jobs that may pass the cut; as far as jobs have not come there. rows: to generate texts
    for; tokens_per_row: their mean length, prompt and answer."""
    if spec.evaluation is None:
        return NO_TEXTS
    live = [job for job in jobs if job.status not in JOB_TERMINAL]
    if not live:
        return NO_TEXTS
    size, early_exit = spec.search_space.size, spec.early_exit
    passing = size if early_exit.policy == "asha" else early_exit.survivors(size)[1]  # asha keeps who comes early
    due = float(all(job.step == 0 for job in jobs)) + len(live)
    for job in live:
        passes = passing / size if unranked(job) else 1.0
        ahead = sum(share * job.total_steps > job.step for share in spec.evaluation.milestones)
        due += passes * ahead + (spec.cut_metric is not None and unranked(job))
    return TextWork(due, min(rows, spec.evaluation.max_prompts), tokens_per_row, spec.evaluation.max_new_tokens)
