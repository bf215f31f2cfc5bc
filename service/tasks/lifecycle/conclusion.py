"""Ends a task after its last job has ended: picks the winner, or records the error. Callers hold the task's row lock."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from contract.job_config import JobConfig
from contract.row_scores import RowScores
from contract.states import JOB_TERMINAL, ExitReason, JobStatus, TaskStatus
from contract.task_spec import VAL_LOSS
from contract.wording.exit_sentences import holds_numbers
from service.adapters.models import Adapter
from service.database.checked_json import ResultUnreadable, UnreadValue
from service.database.engine import clock
from service.tasks.lifecycle.transitions import enter, enter_job
from service.tasks.milestone_evaluations import boundary_scores
from service.tasks.models import Job, Task
from service.tasks.next_search import Tried, of_no_winner, suggestions
from service.tasks.pairwise_wins import wins_over
from service.tasks.selection import Candidate, Selection, choose
from service.tasks.stored_specs import SpecUnreadable, config_of, effective, part
from service.tasks.text_evaluations import scores_of_prompts, scores_to_select_by, why_unscored

log = logging.getLogger(__name__)

_KEPT = select(Adapter.job_id, Adapter.val_loss, Adapter.step, Adapter.scores).where(Adapter.task_id == bindparam("task"))


def fail_unfinished(task: Task, error: str) -> None:
    """Fail every job that has not ended."""
    for job in task.jobs:
        if job.status not in JOB_TERMINAL:
            enter_job(job, JobStatus.FAILED, func.clock_timestamp())
            job.error = error


def conclude(session: Session, task: Task, error: str | None = None, fenced: bool = False) -> bool:
    """End the task if all its jobs have ended; its winner is chosen among those that kept an adapter (tasks/selection.py).

    `error` is why the task was stopped, if it was; `fenced`: its placement may report nothing more. Returns whether it ended.
    """
    if any(job.status not in JOB_TERMINAL for job in task.jobs):
        return False
    session.flush()
    kept = {one.job_id: one for one in session.execute(_KEPT, {"task": task.id})}
    candidates = {job.index: job for job in task.jobs if job.id in kept}
    if candidates:
        configs = _configs(session, task)
        winner, selection = _selected(session, task, candidates, kept, configs)
        base, own = scores_of_prompts(session, task, None), scores_of_prompts(session, task, winner.id)
        selection = selection.model_copy(update={"pairwise": wins_over(base, own, selection.compared or 1)})
        chosen = {"winner_job_id": winner.id, "selection": selection.model_dump(mode="json")}
        enter(task, TaskStatus.SUCCEEDED, clock(session), fenced, **chosen)
    else:
        enter(task, TaskStatus.FAILED, clock(session), fenced, error=error or _why(task.jobs))
    return True


def _configs(session: Session, task: Task) -> dict[int, JobConfig]:
    """All jobs' configurations by one query; none where another version wrote one that this one cannot read."""
    rows = session.execute(select(Job.index, Job.config).where(Job.task_id == task.id))
    try:
        return {index: config_of(config) for index, config in rows}
    except SpecUnreadable:
        return {}


def _selected(
    session: Session, task: Task, jobs: Mapping[int, Job], kept: Mapping[str, Any], configs: Mapping[int, JobConfig]
) -> tuple[Job, Selection]:
    """The winner among these jobs, and how it was chosen. kept: each one's adapter."""
    ranks = {index: configs[index].rank if configs else 0 for index in jobs}
    candidates, found, selection = _chosen(session, task, jobs, kept, ranks)
    winner = jobs[found.index]
    if not configs:
        return winner, selection
    best, stopped = configs[found.index], _stopped(task.jobs) if selection.beats_base is False else None
    scores = {one.index: one.scores for one in candidates} if stopped is None else _at_boundary(session, task, selection)
    lowest = {job.index: job.best_val_loss for job in task.jobs if job.best_val_loss is not None}
    tried = [Tried(config, scores.get(index), lowest.get(index, math.inf)) for index, config in configs.items()]
    drawn = part(task, "search_space").get("method") in ("random", "tpe")
    if selection.beats_base is False:
        learned = selection.gain is not None and selection.gain.mean > 0
        tips = of_no_winner(tried, best, selection.rows, learned, selection.of_texts, drawn)
        said = {"verdict": stopped} if stopped is not None else {}
        return winner, selection.model_copy(update={"suggestions": tips, **said})
    tips = suggestions(tried, best, kept[winner.id].step, winner.total_steps, task.train_rows, drawn)
    return winner, selection.model_copy(update={"suggestions": tips})


def _chosen(
    session: Session, task: Task, jobs: Mapping[int, Job], kept: Mapping[str, Any], ranks: Mapping[int, int]
) -> tuple[list[Candidate], Candidate, Selection]:
    """The candidates with what they were compared by, and the winner: by the metric that the task selects by, where any
    adapter's texts were scored; else by the validation rows."""
    metric = effective(task).get("select_by", VAL_LOSS)
    texts, damage = dict[str | None, RowScores](), ""
    try:
        texts = scores_to_select_by(session, task, metric) if metric != VAL_LOSS else {}
    except ResultUnreadable as error:
        damage = str(error)
        log.error("task %s ends without them: %s", task.id, error)
    ranked_out = sum(job.exit_reason == ExitReason.UNDERPERFORMING and job.id not in kept for job in task.jobs)
    if any(job.id in texts for job in jobs.values()):
        scored = [Candidate(index, ranks[index], _validated(kept[job.id]), texts.get(job.id)) for index, job in jobs.items()]
        return scored, *choose(scored, texts.get(None), metric, ranked_out)
    base = _scores(task.base_scores)
    candidates = [
        Candidate(index, ranks[index], kept[job.id].val_loss, _scores(kept[job.id].scores)) for index, job in jobs.items()
    ]
    winner, selection = choose(candidates, base, ranked_out=ranked_out)
    if metric == VAL_LOSS:
        return candidates, winner, selection
    why = damage or why_unscored(session, task, metric) or "its worker reported no score"
    said = f"no adapter was scored by {metric} ({why}), so the validation loss decided: {selection.verdict}"
    return candidates, winner, selection.model_copy(update={"verdict": said, "unscored": sorted(jobs)})


def _at_boundary(session: Session, task: Task, selection: Selection) -> dict[int, RowScores]:
    """By job index, what jobs were ranked by at the end of warmup: of a search that ended there one alone has an adapter."""
    if selection.of_texts:
        try:
            found = boundary_scores(session, task, selection.metric)
        except ResultUnreadable as error:
            log.error("task %s ends without them: %s", task.id, error)
            return {}
        return {job.index: found[job.id] for job in task.jobs if job.id in found}
    rows = session.execute(select(Job.index, Job.boundary_scores).where(Job.task_id == task.id))
    read = [(index, _scores(stored)) for index, stored in rows]
    return {index: scores for index, scores in read if scores is not None}


def _validated(kept: Any) -> float:
    """What validation says of an adapter, where texts cannot tell: its loss, or, in a DPO search over beta, on which the loss
    depends, the share of pairs that are ordered wrongly."""
    scores = _scores(kept.scores)
    return scores.mean if scores is not None and scores.metric == "error" else float(kept.val_loss)


def _scores(stored: RowScores | UnreadValue | None) -> RowScores | None:
    """None also where they cannot be read: the task ends all the same, compared as where there are none."""
    if isinstance(stored, UnreadValue):
        log.error("a task ends without them: %s", stored.why)
        return None
    return stored


def _stopped(jobs: Sequence[Job]) -> str | None:
    """Of a search that ended at its cut, since no job beat the base: that, with the losses or the results of a metric. None
    where no job's evidence holds them."""
    found = [job.exit_evidence for job in jobs if job.exit_evidence is not None]

    def holding(*names: str) -> list[dict[str, Any]]:
        return [one for one in found if holds_numbers(one, *names)]

    if scored := [one for one in holding("base_score", "score", "prompts") if isinstance(one.get("metric"), str)]:
        metric, base, best = scored[0]["metric"], scored[0]["base_score"], max(one["score"] for one in scored)
        return (
            f"nothing has learned more than the base by {metric}: check the data. After warmup the base alone has {base:.4f} "
            f"on {scored[0]['prompts']} prompts, the best of {len(scored)} jobs {best:.4f}"
        )
    if ordered := holding("base_val_accuracy", "val_accuracy", "rows"):
        base, best = ordered[0]["base_val_accuracy"], max(one["val_accuracy"] for one in ordered)
        return (
            f"nothing has learned more than the base by validation accuracy: check the data. After warmup the base alone has "
            f"{base:.4f} on {ordered[0]['rows']} pairs, the best of {len(ordered)} jobs {best:.4f}"
        )
    if lost := holding("base_val_loss", "val_loss"):
        base, best = lost[0]["base_val_loss"], min(one["val_loss"] for one in lost)
        return (
            f"nothing has learned more than the base: check the data. After warmup the base alone has {base:.4f} on the "
            f"validation rows, the best of {len(lost)} jobs {best:.4f}"
        )
    return None


def _why(jobs: list[Job]) -> str:
    failed = [job for job in jobs if job.status == JobStatus.FAILED]
    if not failed:
        return f"none of the {len(jobs)} jobs reached a finite validation loss, so there is no adapter to keep"
    first = f"job {failed[0].index}: {failed[0].error}"
    return f"{len(failed)} of {len(jobs)} jobs failed and no other kept an adapter; {first}"
