"""/openai/v1/fine_tuning/jobs: an OpenAI job is a Motet task."""

import re

from fastapi import APIRouter, Request
from pydantic import ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.task_spec import TaskSpec
from service.adapters.models import Adapter
from service.app_state import DependenciesDep, GradersDep, QueueDep, WakeupsDep
from service.authentication import Db, Reader, Writer
from service.fleet.models import Placement
from service.http.concurrency_limits import Submitting
from service.http.openai_ids import OpenAiIds
from service.http.problem_handlers import invalid_body
from service.http.problems import invalid_field
from service.http.request_bodies import NO_BODY
from service.idempotency.repeated_requests import ClaimedKey
from service.openai.error_objects import PREFIX
from service.openai.id_translation import Ids, OwnIdsRoute
from service.openai.jobs.event_objects import EventObject, events_page
from service.openai.jobs.job_objects import CheckpointObject, JobObject, checkpoint_object, job_object
from service.openai.jobs.job_requests import JobRequest
from service.openai.list_envelope import After, Limit, ListOf, listed
from service.openai.models.asked_models import as_of_model, starts_of, tuned_start
from service.tasks import actions
from service.tasks.models import Task
from service.tasks.resource import render
from service.tasks.submission.spec_checks import SpecRefused
from service.tenants.tenant_scope import find, scoped
from service.usage.models import TaskUsageRecord

router = APIRouter(prefix=f"{PREFIX}/fine_tuning/jobs", include_in_schema=False, route_class=OwnIdsRoute)

_NOUN = "fine-tuning job"
_METADATA = re.compile(r"metadata\[([^\]]{1,64})\]")


def _objects(session: Session, tasks: list[Task], ids: OpenAiIds) -> list[JobObject]:
    own = [task.id for task in tasks]
    sums = (
        select(TaskUsageRecord.task_id, func.sum(TaskUsageRecord.tokens - TaskUsageRecord.rewound_tokens))
        .where(TaskUsageRecord.task_id.in_(own))
        .group_by(TaskUsageRecord.task_id)
    )
    tokens = {task_id: int(total) for task_id, total in session.execute(sums)}
    live = select(Placement.task_id, Placement.expected_end).where(Placement.task_id.in_(own), Placement.ended_at.is_(None))
    ends = {task_id: end for task_id, end in session.execute(live)}
    shown = render(session, tasks)
    starts = starts_of(session, tasks)
    return [
        job_object(task, one, tokens.get(task.id, 0), ids, ends.get(task.id), starts.get(task.id))
        for task, one in zip(tasks, shown, strict=True)
    ]


@router.post("")
def create_job(
    wanted: JobRequest,
    writer: Writer,
    db: Db,
    queue: QueueDep,
    graders: GradersDep,
    claim: ClaimedKey,
    ids: Ids,
    limited: Submitting,
) -> JobObject:
    with db.begin() as session:
        start = tuned_start(session, writer, wanted.model)
        if start is not None and wanted.warm_start is not None:
            raise invalid_field("warm_start", "said_twice", "'model' names the adapter to start from; leave warm_start out")
        try:
            spec = wanted.spec(start)
        except ValidationError as error:
            raise invalid_body(error, TaskSpec) from None
        try:
            task = actions.create(session, queue, graders, writer, spec)
        except SpecRefused as refused:
            raise (as_of_model(refused) if start is not None else refused) from None
        made = _objects(session, [task], ids)[0]
        claim.store_answer(session, 200, made, {})
    return made


@router.get("")
def list_jobs(reader: Reader, db: Db, request: Request, ids: Ids, after: After = None, limit: Limit = 20) -> ListOf[JobObject]:
    pairs = _metadata(request)
    with db.begin() as session:
        tasks = actions.select_tasks(reader, labels=pairs or {})
        if pairs is None:
            tasks = tasks.where(Task.labels == {})
        return listed(session, reader, tasks, Task, after, limit, lambda rows: _objects(session, list(rows), ids))


def _metadata(request: Request) -> dict[str, str] | None:
    """The filter's `metadata[key]=value` pairs; None for `metadata=null`, which selects jobs without metadata."""
    query = request.query_params
    pairs = {named.group(1): value for name, value in query.multi_items() if (named := _METADATA.fullmatch(name))}
    if "metadata" in query and (query["metadata"] != "null" or pairs):
        raise invalid_field("metadata", "invalid_filter", "is either metadata[key]=value, for some keys, or metadata=null")
    if any("\0" in text for pair in pairs.items() for text in pair):
        raise invalid_field("metadata", "invalid_filter", "holds a NUL character")
    return None if "metadata" in query else pairs


@router.get("/{task_id}")
def get_job(task_id: str, reader: Reader, db: Db, ids: Ids) -> JobObject:
    with db.begin() as session:
        return _objects(session, [find(session, Task, task_id, reader, _NOUN)], ids)[0]


@router.post("/{task_id}/cancel", dependencies=[NO_BODY])
def cancel_job(task_id: str, writer: Writer, db: Db, queue: QueueDep, hints: WakeupsDep, ids: Ids) -> JobObject:
    with db.begin() as session:
        return _objects(session, [actions.cancel(session, queue, hints, writer, task_id, _NOUN)], ids)[0]


@router.post("/{task_id}/pause", dependencies=[NO_BODY])
def pause_job(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep, ids: Ids) -> JobObject:
    with db.begin() as session:
        return _objects(session, [actions.pause(session, dependencies, writer, task_id, _NOUN)], ids)[0]


@router.post("/{task_id}/resume", dependencies=[NO_BODY])
def resume_job(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep, ids: Ids) -> JobObject:
    with db.begin() as session:
        return _objects(session, [actions.resume(session, dependencies, writer, task_id, _NOUN)], ids)[0]


@router.get("/{task_id}/events")
def list_events(task_id: str, reader: Reader, db: Db, ids: Ids, after: After = None, limit: Limit = 20) -> ListOf[EventObject]:
    with db.begin() as session:
        task = find(session, Task, task_id, reader, _NOUN)
        return events_page(session, reader, task, after, limit, ids)


@router.get("/{task_id}/checkpoints")
def list_checkpoints(
    task_id: str, reader: Reader, db: Db, ids: Ids, after: After = None, limit: Limit = 10
) -> ListOf[CheckpointObject]:
    """The adapters of its configurations, the newest first."""
    with db.begin() as session:
        task = find(session, Task, task_id, reader, _NOUN)
        adapters = scoped(select(Adapter).where(Adapter.task_id == task_id, Adapter.deleted_at.is_(None)), Adapter, reader)
        return listed(
            session, reader, adapters, Adapter, after, limit, lambda rows: [checkpoint_object(a, task, ids) for a in rows]
        )
