"""Gives the scores of endpoint graders to the evaluations that wait for them: means, scores of prompts, samples, notes, events.

A text without a score is left out of its metric's mean; where more than a tenth have none, the metric has no result, since
means over different texts cannot be compared. The notes say both.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.adapters.models import Adapter
from service.database.checked_json import Unread, UnreadValue
from service.database.engine import Database, clock
from service.graders.models import EndpointGrader, GradedText, TextGrading
from service.graders.text_claims import MOST_UNGRADED, is_over
from service.graders.waiting_texts import lock_graders
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.event_log import EventBuffer, EventKind
from service.tasks.models import Job, MilestoneEvaluation, Task, TextEvaluation
from service.tasks.pairwise_wins import wins_over
from service.tasks.selection import selection_of
from service.tasks.text_evaluations import evaluation_of, scores_of_prompts, told_of, unread_of

log = logging.getLogger(__name__)

_REASONS = 3  # that a note tells, the most frequent


@dataclass(frozen=True)
class GradedMetric:
    """scores: of each prompt in order, None where it has none; empty where the metric has no result. note: what is missing."""

    scores: Sequence[float | None]
    note: str | None = None


def finish(db: Database, grading_id: str) -> None:
    """Give the grading's scores to its evaluation and forget its texts, if it is over and nobody else has done so."""
    with db.begin() as session:
        found = session.get(TextGrading, grading_id)
        if found is None:
            return
        task = session.scalars(select(Task).where(Task.id == found.task_id).with_for_update()).one()
        lock_graders(session, EndpointGrader.id == found.grader_id)
        grading = session.scalar(select(TextGrading).where(TextGrading.id == grading_id, is_over()).with_for_update())
        if grading is None:
            return
        _conclude(session, task, grading)
        session.delete(grading)
        bump_version_and_notify(session, task)


def _conclude(session: Session, task: Task, grading: TextGrading) -> None:
    metric = session.get_one(EndpointGrader, grading.grader_id).metric
    job = session.get_one(Job, grading.job_id) if grading.job_id is not None else None
    evaluation = evaluation_of(session, task, job, grading.milestone)
    if evaluation is None:
        return
    if unread := unread_of(evaluation):
        left = ", ".join(unread)
        log.error("task %s: an evaluation's %s cannot be read and get nothing of metric %s", task.id, left, metric)
    texts = session.scalars(select(GradedText).where(GradedText.grading_id == grading.id).order_by(GradedText.place)).all()
    graded = tally(metric, texts, clock(session) >= grading.give_up_at)
    _note(evaluation, graded.note)
    if not graded.scores:
        return
    known = [score for score in graded.scores if score is not None]
    if isinstance(evaluation.scores, Unread):
        _note(evaluation, f"metric '{metric}' has the mean {fmean(known):.6g}, which cannot be kept with the stored scores")
    else:
        evaluation.scores = evaluation.scores | {metric: fmean(known)}
    if not isinstance(evaluation.samples, Unread):
        evaluation.samples = [
            sample if score is None else sample | {"scores": sample["scores"] | {metric: score}}
            for sample, score in zip(evaluation.samples, graded.scores, strict=False)  # samples are of the first prompts
        ]
    if isinstance(evaluation, TextEvaluation) and len(known) == len(graded.scores):
        held = evaluation.prompt_scores
        if isinstance(held, UnreadValue):
            log.error("task %s: scores of metric %s are not kept by prompt: %s", task.id, metric, held.why)
        else:
            evaluation.prompt_scores = held | {metric: known}
    session.flush()
    _tell(session, task, job, evaluation)


def _note(evaluation: TextEvaluation | MilestoneEvaluation, note: str | None) -> None:
    """Add a note where those that are there can be read, else what is there would be lost."""
    if note is not None and not isinstance(evaluation.notes, Unread):
        evaluation.notes = [*evaluation.notes, note]


def tally(metric: str, texts: Sequence[GradedText], time_is_up: bool) -> GradedMetric:
    """What an endpoint's answers make of a metric. Of texts in the order of their prompts."""
    done = [text for text in texts if text.done]
    waiting = len(texts) - len(done)
    reasons = Counter(text.error or "" for text in done if text.score is None)
    failed = reasons.total()
    if time_is_up and waiting:
        reasons["time was up"] += waiting
    ungraded = reasons.total()
    if not ungraded:
        return GradedMetric([text.score for text in texts])
    why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(_REASONS))
    if ungraded <= MOST_UNGRADED * len(texts):
        note = f"metric '{metric}': {ungraded} of {len(texts)} texts could not be graded ({why}) and are left out of its mean"
        return GradedMetric([text.score for text in texts], note[:500])
    said = f"{ungraded} of {len(texts)} texts could not be graded"
    if waiting and not time_is_up:
        said = f"{failed} of the first {len(done)} texts could not be graded, and the other {waiting} were not sent"
    return GradedMetric([], f"metric '{metric}' has no result: {said} ({why})"[:500])


def _tell(session: Session, task: Task, job: Job | None, evaluation: TextEvaluation | MilestoneEvaluation) -> None:
    """Record an event as of the evaluation itself, with all its scores, and compare the winner's texts with the base's."""
    events = EventBuffer(session, task)
    if isinstance(evaluation, MilestoneEvaluation):
        assert job is not None, "milestones are of jobs"
        said = {"milestone": evaluation.milestone, "evaluated_step": evaluation.step, "scores": evaluation.scores}
        events.job(job, said)
        return
    told = told_of(session, task, job)
    if job is None:
        events.add(EventKind.BASE, {"val_loss": task.base_val_loss, **told})
    else:
        adapter = session.scalar(select(Adapter).where(Adapter.job_id == job.id))
        if adapter is not None:  # else its event is still to come, and tells the scores
            kept = {"job": job.index, "adapter_id": adapter.id, "step": adapter.step, "val_loss": adapter.val_loss}
            events.add(EventKind.ADAPTER, kept | told)
    chosen = selection_of(task) if task.status == TaskStatus.SUCCEEDED else None
    if chosen is not None and task.selection and evaluation.job_id in (None, task.winner_job_id):
        base, own = scores_of_prompts(session, task, None), scores_of_prompts(session, task, task.winner_job_id)
        adapters = select(func.count(Adapter.id)).where(Adapter.task_id == task.id)  # where an earlier version chose
        compared = chosen.compared or session.scalar(adapters) or 1
        wins = [one.model_dump(mode="json") for one in wins_over(base, own, compared)]
        task.selection = task.selection | {"pairwise": wins}
