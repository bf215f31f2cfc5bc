"""Scores of the texts that jobs generate at milestones of their training: stored from reports, read for answers."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, func, select, tuple_
from sqlalchemy.orm import Session

from contract.messages.report_messages import TextsEvaluated
from contract.row_scores import RowScores
from contract.search_space import MAX_JOBS
from service.database.checked_json import required
from service.graders.waiting_texts import left_to_grade
from service.http.pagination import Page, cursor_unknown, pack_cursor, unpack_cursor
from service.tasks.models import Job, MilestoneEvaluation, Task
from service.tasks.stored_specs import effective
from service.tasks.text_evaluations import TextEvaluationResource, TextScores, as_stored, scores_in
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

_PLACE = (Job.index, MilestoneEvaluation.milestone)


def store(session: Session, task: Task, job: Job, milestone: int, event: TextsEvaluated) -> dict[str, Any]:
    """Keep an evaluation, in place of an earlier one of the same milestone. Returns what an event tells of it: `milestone`,
    `scores`, and `evaluation_error` where there are none."""
    same = MilestoneEvaluation.job_id == job.id, MilestoneEvaluation.milestone == milestone
    session.execute(delete(MilestoneEvaluation).where(*same))
    step = milestone if event.step is None else event.step
    stored = as_stored(event) | {"step": step, "prompt_scores": event.prompt_scores or None}
    session.add(MilestoneEvaluation(tenant_id=task.tenant_id, task_id=task.id, job_id=job.id, milestone=milestone, **stored))
    if event.prompt_scores:
        job.warmup_score = event.scores.get(str(effective(task).get("select_by")))
    error = {"evaluation_error": event.error} if event.error is not None else {}
    return {"milestone": milestone, "evaluated_step": step, "scores": event.scores, **error}


def last_of_jobs(session: Session, task: Task) -> Mapping[str, int]:
    """The last milestone of each job whose texts are stored, a step, by job id."""
    last = select(MilestoneEvaluation.job_id, func.max(MilestoneEvaluation.milestone))
    of_task = last.where(MilestoneEvaluation.task_id == task.id).group_by(MilestoneEvaluation.job_id)
    return {job_id: milestone for job_id, milestone in session.execute(of_task)}


def boundary_scores(session: Session, task: Task, metric: str) -> dict[str, RowScores]:
    """Of each prompt at the end of warmup by the text metric that ranks jobs there, by job id; jobs without are absent. Raises
    ResultUnreadable."""
    one = MilestoneEvaluation
    asked = select(one.job_id, one.prompt_scores).where(one.task_id == task.id, one.prompt_scores.is_not(None))
    read = ((job_id, required(scores)) for job_id, scores in session.execute(asked))
    return {job_id: RowScores.of_results(scores[metric]) for job_id, scores in read if scores and scores.get(metric)}


def milestones_page(
    session: Session, principal: Principal, task_id: str, cursor: str | None, limit: int
) -> Page[TextEvaluationResource]:
    """In order of the jobs' indexes, then of the milestones; empty if the task is not the caller's."""
    asked = _owned(principal, task_id).order_by(*_PLACE).limit(limit + 1).add_columns(MilestoneEvaluation)
    if cursor is not None:
        asked = asked.where(tuple_(*_PLACE) > _place_of(cursor))
    rows, left = list(session.execute(asked)), left_to_grade(session, principal, task_id)
    more, rows = len(rows) > limit, rows[:limit]
    last = [rows[-1].job_index, rows[-1].MilestoneEvaluation.milestone] if more else None
    return Page(
        data=[TextEvaluationResource.of(row.MilestoneEvaluation, row.job_index, left) for row in rows],
        next_cursor=pack_cursor(last) if last is not None else None,
    )


def milestone_scores(session: Session, principal: Principal, task_id: str) -> list[TextScores]:
    """All of a task's, without samples, in order of the jobs' indexes, then of the milestones."""
    one = MilestoneEvaluation
    asked = _owned(principal, task_id).order_by(*_PLACE)
    columns = (one.job_id, one.milestone, one.step, one.prompts, one.scores, one.error, one.notes)
    rows, left = session.execute(asked.add_columns(*columns)).all(), left_to_grade(session, principal, task_id)
    return [scores_in(row, left.get((row.job_id, row.milestone), {})) for row in rows]


def _owned(principal: Principal, task_id: str) -> Select[Any]:
    columns: list[Any] = [Job.index.label("job_index")]
    read = select(*columns).select_from(MilestoneEvaluation).join(Job, Job.id == MilestoneEvaluation.job_id)
    return scoped(read.where(MilestoneEvaluation.task_id == task_id), MilestoneEvaluation, principal)


def _place_of(cursor: str) -> tuple[int, int]:
    """The place after which the page begins. Raises Invalid."""
    said = unpack_cursor(cursor)
    if not isinstance(said, list) or len(said) != 2 or any(type(part) is not int for part in said):
        raise cursor_unknown()
    index, milestone = said
    if not (0 <= index <= MAX_JOBS and 0 <= milestone < 2**31):
        raise cursor_unknown()
    return index, milestone
