"""POST /v1/tasks: the route that creates a task. It calls SubmissionCoalescer.submit (coalesced_submission.py), which calls
create_all (tasks/actions.py) for all that arrived together."""

from fastapi import APIRouter, Request, Response

from contract.task_spec import TaskSpec
from service.app_state import state_of
from service.authentication import Db, Writer, note_of
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import IdempotencyKey, keyed_request_of
from service.tasks.resource import TaskResource
from service.tasks.submission.coalesced_submission import Submission
from service.tracing.request_trace import take_traceparent

router = APIRouter(prefix="/v1", tags=["tasks"], responses=problems(401, 403))


@router.post(
    "/tasks",
    status_code=201,
    operation_id="create_task",
    summary="Train a search space",
    description="Every configuration of the search space becomes a job. The answer is the task, which is `validating`.",
    response_model=TaskResource,
    responses=problems(400, 409, 413, 422),
)
async def create_task(
    request: Request, spec: TaskSpec, writer: Writer, db: Db, idempotency_key: IdempotencyKey = None
) -> Response:
    keyed_request = await keyed_request_of(request, idempotency_key)
    submission = Submission(spec, note_of(request, writer), keyed_request, take_traceparent())
    created = await state_of(request).submissions.submit(db, writer, submission)
    return Response(created.text, 201, created.headers, "application/json")
