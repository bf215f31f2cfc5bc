"""Scores of generated texts, of the base and of each kept adapter: stored from reports, read for answers, selected by."""

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, Select, delete, func, or_, select
from sqlalchemy.orm import Session

from contract.messages.report_messages import TextsEvaluated
from contract.row_scores import RowScores
from contract.search_space import MAX_JOBS
from service.database.checked_json import Unread, UnreadValue, required
from service.database.engine import new_id
from service.graders.waiting_texts import Evaluated, left_to_grade
from service.http.pagination import Page, cursor_unknown, pack_cursor, unpack_cursor
from service.tasks.models import Job, MilestoneEvaluation, Task, TextEvaluation
from service.tasks.stored_specs import part
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

log = logging.getLogger(__name__)

COLUMNS = ("job", "job_id", "step", "prompts", "metric", "score")
_FIRST = -1  # the base's place before the jobs'
_PLACE = func.coalesce(Job.index, _FIRST)


@dataclass(frozen=True)
class TextScores:
    """An evaluation without its samples; without a job, the base's."""

    job_id: str | None
    index: int | None
    step: int | None
    prompts: int
    scores: Mapping[str, float]
    error: str | None
    notes: Sequence[str] = ()
    pending: Mapping[str, int] = field(default_factory=dict)


class TextSampleResource(BaseModel):
    """One prompt (its end, where it is long), what the row answers, and what was generated."""

    prompt: str
    reference: str
    text: str
    finish_reason: Literal["stop", "length"] = Field(description="length: max_new_tokens were generated")
    scores: dict[str, float]


class TextEvaluationResource(BaseModel):
    """How the texts of the base, or of a job's adapter, were scored."""

    object: Literal["text_evaluation"] = "text_evaluation"
    job_id: str | None = Field(description="Null: of the base alone")
    index: int | None = Field(description="The job's, or null")
    step: int | None = Field(description="After which the adapter was saved, or, at a milestone, the job's weights were taken")
    milestone: int | None = Field(
        default=None,
        description="At a milestone, the step at which it was due: `step`, unless the job resumed past it",
    )
    prompts: int
    scores: dict[str, float] = Field(description="By the metric's name, means over the prompts; empty where `error` says why")
    samples: list[TextSampleResource] = Field(description="The first prompts")
    error: str | None
    notes: list[str] = Field(
        description="What is left out of the scores or counts as 0, in sentences: rows without a prompt, texts that could not "
        "be scored in time, metrics that were given up"
    )
    pending: dict[str, int] = Field(
        default={}, description="By metric, of how many texts an endpoint has still to answer the score; without those it has"
    )
    tokens: int = Field(description="That were read and generated; they are billed as evaluation tokens")
    seconds: float
    created_at: datetime

    @classmethod
    def of(
        cls, row: TextEvaluation | MilestoneEvaluation, index: int | None, left: Mapping[Evaluated, Mapping[str, int]]
    ) -> Self:
        """Of a stored row. index: its job's. left: texts of the task that are still to be graded."""
        milestone = row.milestone if isinstance(row, MilestoneEvaluation) else None
        return cls(
            job_id=row.job_id,
            index=index,
            step=row.step,
            milestone=milestone,
            prompts=row.prompts,
            scores=row.scores,
            samples=[TextSampleResource.model_validate(sample) for sample in row.samples],
            error=row.error,
            notes=[*row.notes, *(f"the stored {name} of this evaluation cannot be read" for name in unread_of(row))],
            pending=dict(left.get((row.job_id, milestone), {})),
            tokens=row.tokens,
            seconds=row.seconds,
            created_at=row.created_at,
        )


def unread_of(row: TextEvaluation | MilestoneEvaluation) -> list[str]:
    """What of an evaluation's row is read as empty, since it is damaged."""
    return [name for name in ("scores", "samples", "notes") if isinstance(getattr(row, name), Unread)]


def store(session: Session, task: Task, job: Job | None, event: TextsEvaluated) -> None:
    """Keep an evaluation, in place of an earlier one of the same adapter."""
    session.execute(delete(TextEvaluation).where(*_of(task, job)))
    session.add(
        TextEvaluation(
            id=new_id("texts"),
            tenant_id=task.tenant_id,
            task_id=task.id,
            job_id=None if job is None else job.id,
            prompt_scores=event.prompt_scores,
            **as_stored(event),
        )
    )


def as_stored(event: TextsEvaluated) -> dict[str, Any]:
    """The columns that evaluations at the end and at milestones share."""
    return {
        "step": event.step,
        "prompts": event.prompts,
        "scores": event.scores,
        "samples": [sample.model_dump(mode="json") for sample in event.samples],
        "error": event.error,
        "notes": event.notes,
        "tokens": event.tokens,
        "seconds": event.seconds,
    }


def told_of(session: Session, task: Task, job: Job | None) -> dict[str, Any]:
    """What an event tells of the evaluation of a job's adapter, or of the base: `scores`, and `evaluation_error` where there
    are none. Empty where the task asks for no evaluation."""
    if not part(task, "evaluation"):
        return {}
    found = session.execute(select(TextEvaluation.scores, TextEvaluation.error).where(*_of(task, job))).one_or_none()
    if found is None:
        return {}
    return {"scores": found.scores} | ({"evaluation_error": found.error} if found.error is not None else {})


def _of(task: Task, job: Job | None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    whose = TextEvaluation.job_id.is_(None) if job is None else TextEvaluation.job_id == job.id
    return TextEvaluation.task_id == task.id, whose


def evaluations_page(
    session: Session, principal: Principal, task_id: str, cursor: str | None, limit: int
) -> Page[TextEvaluationResource]:
    """The base's first, then the jobs' in index order; empty if the task is not the caller's."""
    found = _owned(principal, task_id).where(_place_of(cursor) < _PLACE).order_by(_PLACE).limit(limit + 1)
    rows, left = list(session.execute(found.add_columns(TextEvaluation))), left_to_grade(session, principal, task_id)
    more, rows = len(rows) > limit, rows[:limit]
    return Page(
        data=[TextEvaluationResource.of(row.TextEvaluation, row.job_index, left) for row in rows],
        next_cursor=pack_cursor([rows[-1].place]) if more else None,
    )


def evaluations_of(
    session: Session, principal: Principal, task_id: str, job_ids: Sequence[str]
) -> list[TextEvaluationResource]:
    """Those of the base and of these jobs, the base's first."""
    whose = or_(TextEvaluation.job_id.is_(None), TextEvaluation.job_id.in_(job_ids))
    rows = session.execute(_owned(principal, task_id).where(whose).order_by(_PLACE).add_columns(TextEvaluation)).all()
    left = left_to_grade(session, principal, task_id)
    return [TextEvaluationResource.of(row.TextEvaluation, row.job_index, left) for row in rows]


def scores_of_task(session: Session, principal: Principal, task_id: str) -> list[TextScores]:
    """All of a task's, without samples: the base's first, then the jobs' in index order."""
    columns = (TextEvaluation.job_id, TextEvaluation.step, TextEvaluation.prompts, TextEvaluation.scores)
    said = (TextEvaluation.error, TextEvaluation.notes)
    rows = session.execute(_owned(principal, task_id).order_by(_PLACE).add_columns(*columns, *said)).all()
    left = left_to_grade(session, principal, task_id)
    return [scores_in(row, left.get((row.job_id, None), {})) for row in rows]


def scores_in(row: Any, pending: Mapping[str, int]) -> TextScores:
    """Of a row with the columns of either table."""
    return TextScores(row.job_id, row.job_index, row.step, row.prompts, row.scores, row.error, row.notes, pending)


def _owned(principal: Principal, task_id: str) -> Select[Any]:
    columns: list[Any] = [Job.index.label("job_index"), _PLACE.label("place")]
    read = select(*columns).select_from(TextEvaluation).outerjoin(Job, Job.id == TextEvaluation.job_id)
    return scoped(read.where(TextEvaluation.task_id == task_id), TextEvaluation, principal)


def _place_of(cursor: str | None) -> int:
    """The place after which the page begins. Raises Invalid."""
    if cursor is None:
        return _FIRST - 1
    said = unpack_cursor(cursor)
    if not isinstance(said, list) or len(said) != 1 or type(said[0]) is not int or abs(said[0]) > MAX_JOBS:
        raise cursor_unknown()
    place: int = said[0]
    return place


def evaluation_of(
    session: Session, task: Task, job: Job | None, milestone: int | None
) -> TextEvaluation | MilestoneEvaluation | None:
    """The row of the base's evaluation or of a job's, at a milestone or (None) at its end; None: there is none."""
    if job is not None and milestone is not None:
        return session.get(MilestoneEvaluation, (job.id, milestone))
    return session.scalar(select(TextEvaluation).where(*_of(task, job)))


def base_is_known(session: Session, task: Task) -> bool:
    """Whether the base's texts are scored."""
    return session.scalar(select(TextEvaluation.id).where(*_of(task, None))) is not None


def scores_to_select_by(session: Session, task: Task, metric: str) -> dict[str | None, RowScores]:
    """Of each prompt 1 minus the metric's result, so that lower is better: by job, None: of the base. Jobs without such
    scores are absent. Raises ResultUnreadable."""
    rows = session.execute(select(TextEvaluation.job_id, TextEvaluation.prompt_scores).where(TextEvaluation.task_id == task.id))
    read = ((job_id, required(scores)) for job_id, scores in rows)
    return {job_id: RowScores.of_results(scores[metric]) for job_id, scores in read if scores.get(metric)}


def scores_of_prompts(session: Session, task: Task, job_id: str | None) -> dict[str, list[float]]:
    """By metric, of each prompt: of the job's adapter, None: of the base. Empty where there are none, or none to be read."""
    whose = TextEvaluation.job_id.is_(None) if job_id is None else TextEvaluation.job_id == job_id
    stored = session.scalar(select(TextEvaluation.prompt_scores).where(TextEvaluation.task_id == task.id, whose))
    if isinstance(stored, UnreadValue):
        log.error("prompts of task %s are compared without them: %s", task.id, stored.why)
        return {}
    return stored or {}


def why_unscored(session: Session, task: Task, metric: str) -> str | None:
    """Why texts of adapters have no score by this metric, as the first report of one says."""
    said = select(TextEvaluation.error, TextEvaluation.notes).where(
        TextEvaluation.task_id == task.id, TextEvaluation.job_id.is_not(None)
    )
    for error, notes in session.execute(said.order_by(TextEvaluation.created_at)):
        why = error or next((note for note in notes if note.startswith(f"metric '{metric}' has no result")), None)
        if why is not None:
            return str(why)
    return None


def as_csv(found: Sequence[TextScores]) -> str:
    """A line for each metric of each evaluation; the base's have no job."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for one in found:
        for metric, score in sorted(one.scores.items()):
            lines.writerow([one.index, one.job_id, one.step, one.prompts, metric, score])
    return text.getvalue()
