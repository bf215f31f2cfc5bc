"""Texts that wait for their endpoint's scores: added with an evaluation, counted for answers, forgotten. Sends nothing."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, delete, func, insert, select
from sqlalchemy.orm import Session

from contract.messages.report_messages import GeneratedText
from service.database.engine import clock, new_id
from service.graders.models import EndpointGrader, GradedText, TextGrading
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

# bytes of a tenant's texts that wait: those of 32 of the largest reports, else slow endpoints fill a disk
MOST_WAITING = 256 * 2**20
GIVEN_UP = timedelta(hours=24)  # after which texts that have no score get none

Evaluated = tuple[str | None, int | None]  # job id (None: the base) and milestone (None: at the end)


def add(session: Session, tenant_id: str, task_id: str, of: Evaluated, texts: Sequence[GeneratedText]) -> list[str]:
    """Have the task's graders grade the texts of an evaluation, in place of those of an earlier one of the same. None: only
    forget the earlier ones. Returns notes on metrics that have no result, as more texts of the tenant wait than may."""
    graders = lock_graders(session, EndpointGrader.task_id == task_id)
    session.execute(delete(TextGrading).where(TextGrading.task_id == task_id, *_same(of)))
    if not (texts and graders):
        return []
    rows = [{"place": place, **text.model_dump()} for place, text in enumerate(texts)]
    until = clock(session) + GIVEN_UP
    own = sum(len(said.encode()) for text in texts for said in (text.prompt, text.reference, text.text))
    waiting, notes = _waiting_bytes(session, tenant_id), list[str]()
    for grader_id, metric in graders.items():
        if waiting + own > MOST_WAITING:
            most, way = f"{MOST_WAITING / 2**20:g} MiB", "post the task again when your endpoints have answered others"
            notes.append(f"metric '{metric}' has no result: at most {most} of a tenant's texts may wait for scores; {way}")
            continue
        waiting += own
        grading = TextGrading(
            id=new_id("grading"),
            tenant_id=tenant_id,
            task_id=task_id,
            grader_id=grader_id,
            job_id=of[0],
            milestone=of[1],
            give_up_at=until,
        )
        session.add(grading)
        session.flush()
        whose = {"grading_id": grading.id, "grader_id": grader_id, "tenant_id": tenant_id}
        session.execute(insert(GradedText), [whose | row for row in rows])
    return notes


def forget(session: Session, task_id: str) -> None:
    """Forget the task's graders with their headers, and all texts that wait for them."""
    lock_graders(session, EndpointGrader.task_id == task_id)
    session.execute(delete(EndpointGrader).where(EndpointGrader.task_id == task_id))


def lock_graders(session: Session, *of: ColumnElement[bool]) -> Mapping[str, str]:
    """Metrics of graders by their ids, locked in the order of their ids. Who claims or deletes several texts does so
    first, so that no two transactions wait for each other."""
    found = select(EndpointGrader.id, EndpointGrader.metric).where(*of).order_by(EndpointGrader.id)
    return {grader_id: metric for grader_id, metric in session.execute(found.with_for_update(key_share=True))}


def left_to_grade(session: Session, principal: Principal, task_id: str) -> Mapping[Evaluated, Mapping[str, int]]:
    """How many texts of each of the task's evaluations have no score yet, by metric; without those that have none left."""
    waiting = select(TextGrading.job_id, TextGrading.milestone, EndpointGrader.metric, func.count(GradedText.place))
    waiting = waiting.join(EndpointGrader, EndpointGrader.id == TextGrading.grader_id)
    waiting = waiting.join(GradedText, (GradedText.grading_id == TextGrading.id) & GradedText.done.is_(False), isouter=True)
    of_task = waiting.where(TextGrading.task_id == task_id).group_by(
        TextGrading.job_id, TextGrading.milestone, EndpointGrader.metric
    )
    found: dict[Evaluated, dict[str, int]] = {}
    for job_id, milestone, metric, count in session.execute(scoped(of_task, TextGrading, principal)):
        found.setdefault((job_id, milestone), {})[metric] = count
    return found


def _waiting_bytes(session: Session, tenant_id: str) -> int:
    columns = (GradedText.prompt, GradedText.reference, GradedText.text)
    size = sum((func.octet_length(column) for column in columns[1:]), func.octet_length(columns[0]))
    of_tenant = select(func.sum(size)).join(TextGrading, TextGrading.id == GradedText.grading_id)
    return int(session.scalar(of_tenant.where(TextGrading.tenant_id == tenant_id)) or 0)


def _same(of: Evaluated) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    job_id, milestone = of
    whose = TextGrading.job_id.is_(None) if job_id is None else TextGrading.job_id == job_id
    return whose, TextGrading.milestone.is_(None) if milestone is None else TextGrading.milestone == milestone
