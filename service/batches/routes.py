"""HTTP routes of batches. All are sync except the event stream, which holds no thread while it waits."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from contract.batch_spec import BatchSpec
from service.app_state import GradersDep, QueueDep, Service, WakeupsDep
from service.authentication import Db, Reader, StillAllowed, Writer
from service.batches import actions, merged_events
from service.batches.estimate import BatchEstimateResource, batch_dry_run
from service.batches.models import Batch
from service.batches.resource import BatchResource, render
from service.http.concurrency_limits import Submitting
from service.http.pagination import Cursor, Limit, Page, page
from service.http.request_bodies import NO_BODY
from service.http.response_schemas import event_stream, event_stream_of, problems
from service.idempotency.repeated_requests import ClaimedKey
from service.scheduler.routes import EstimatorDep
from service.tasks.submission.spec_checks import deadline_over
from service.tenants.tenant_scope import find

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=problems(401, 403))
_Event = Annotated[str | None, Header(max_length=2000, description="Id of the last event that was read")]


@router.post(
    "",
    status_code=201,
    operation_id="create_batch",
    summary="Train several search spaces, planned for one objective",
    description=(
        "All tasks are made, or none. They are planned together once the files of all are checked: for the earliest end of the "
        "last one (`makespan`), or for the least weighted sum of their ends. Each is a task as any other; others' tasks start "
        "no later for it."
    ),
    responses=problems(400, 409, 413, 422),
)
def create_batch(
    spec: BatchSpec,
    writer: Writer,
    db: Db,
    queue: QueueDep,
    graders: GradersDep,
    claim: ClaimedKey,
    response: Response,
    limited: Submitting,
) -> BatchResource:
    with db.begin() as session:
        made = actions.create(session, queue, graders, writer, spec)
        late = [*deadline_over(spec.deadline, made.created_at)]
        for index, task in enumerate(spec.tasks):
            late += deadline_over(task.deadline, made.created_at, f"tasks[{index}].deadline")
        resource = render(session, [made])[0].model_copy(update={"problems": late or None})
        headers = {"Location": f"/v1/batches/{resource.id}"}
        claim.store_answer(session, 201, resource, headers)
    response.headers.update(headers)
    return resource


@router.post(
    "/estimate",
    operation_id="estimate_batch",
    summary="Estimate a batch without making it",
    description="When each task would start and end if the batch were posted now, by the rules alone. Nothing is stored.",
    responses=problems(400, 413, 422, 429),
)
def estimate_batch(spec: BatchSpec, estimator: EstimatorDep) -> BatchEstimateResource:
    return estimator.estimate(spec, actions.checked, batch_dry_run)


@router.get("", operation_id="list_batches", summary="List batches, the newest first", responses=problems(422))
def list_batches(reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[BatchResource]:
    with db.begin() as session:
        return page(session, actions.batches_of(reader), Batch, cursor, limit, lambda rows: render(session, rows))


@router.get("/{batch_id}", operation_id="get_batch", summary="Get a batch", responses=problems(404))
def get_batch(batch_id: str, reader: Reader, db: Db) -> BatchResource:
    with db.begin() as session:
        return render(session, [find(session, Batch, batch_id, reader, "batch")])[0]


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancel_batch",
    summary="Cancel every task of a batch that has not ended",
    description="Takes effect at once, for all of them. Ended tasks stay as they are. Cancelling twice is cancelling once.",
    responses=problems(404, 422),
    dependencies=[NO_BODY],
)
def cancel_batch(batch_id: str, writer: Writer, db: Db, queue: QueueDep, wakeups: WakeupsDep) -> BatchResource:
    with db.begin() as session:
        return render(session, [actions.cancel(session, queue, wakeups, writer, batch_id)])[0]


@router.get(
    "/{batch_id}/events",
    operation_id="stream_batch_events",
    summary="Follow what happens to all tasks of a batch",
    description=(
        "Server-sent events as of a task, of all tasks in one stream: `task` is the task's index in the batch. An event's id "
        "is the last number of each task; sent again as Last-Event-ID (or `after`), nothing is missed and nothing comes twice. "
        "The stream ends with the last task; asked for more, the answer is 204."
    ),
    response_class=Response,
    responses=event_stream_of("The tasks have ended, and all their events were read") | problems(404, 422),
)
async def stream_batch_events(
    batch_id: str,
    reader: Reader,
    db: Db,
    state: Service,
    allowed: StillAllowed,
    last_event_id: _Event = None,
    after: Annotated[str | None, Query(max_length=2000, description="The same, for readers that cannot send headers")] = None,
) -> Response:
    first = await merged_events.after(db, reader, batch_id, after if last_event_id is None else last_event_id)
    if first.over and not first.text:
        return Response(status_code=204)
    return event_stream(merged_events.stream(state.change_listener, db, reader, batch_id, first, allowed))
