"""POST /v1/tasks: the route that creates a task. actions.py holds what creating one means."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from contract.task_spec import TaskSpec
from service.app_state import Wakes, state_of
from service.http.concurrency_limits import Submitting
from service.http.idempotency import Once
from service.http.response_schemas import problems
from service.tasks import actions
from service.tasks.polling.poll_cache import etag_of
from service.tasks.resource import TaskResource, render_new
from service.tasks.submission.batched_submission import Submission
from service.tenants.api_keys import Scope
from service.tenants.authentication import Db, Writer, admit, note_of

router = APIRouter(prefix="/v1", tags=["tasks"], responses=problems(401, 403))

_QUICK_BYTES = 2**16  # largest body parsed on the event loop
_QUICK_JOBS = 64  # most jobs of a task that shares a batch: a larger one would delay the others


def create_task(spec: TaskSpec, writer: Writer, db: Db, queue: Wakes, claim: Once, seat: Submitting) -> Response:
    with db.begin() as session:
        resource = render_new(actions.create(session, queue, writer, spec), spec.search_space.size)
        headers = _headers(resource.id, resource.version)
        claim.keep(session, 201, resource, headers)
    return Response(resource.model_dump_json(), 201, headers, "application/json")


def _headers(task_id: str, version: int) -> dict[str, str]:
    return {"Location": f"/v1/tasks/{task_id}", "ETag": etag_of(version)}


class _SubmitRoute(APIRoute):
    """Sends a well-formed submission to the batcher. All others go to FastAPI, whose parsing takes as long as all other work of
    a submission, and which reports what is wrong."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            writer, db = await admit(request, Scope.WRITE)  # authenticate before reading the body
            spec = await _quick_spec(request)
            if spec is not None:
                made = await state_of(request).submissions.make(db, writer, Submission(spec, note_of(request, writer)))
                if made is not None:
                    return Response(made.text, 201, _headers(made.id, made.version), "application/json")
            return await usual(request)

        return handle


async def _quick_spec(request: Request) -> TaskSpec | None:
    """The request's spec, if its body is nothing else and it is small enough to parse and create quickly; else None."""
    headers = request.headers
    if headers.get("content-type") != "application/json" or "idempotency-key" in headers:
        return None
    body = await request.body()
    spec = _spec_of(body) if len(body) <= _QUICK_BYTES else None
    return spec if spec is not None and spec.search_space.size <= _QUICK_JOBS else None


def _spec_of(body: bytes) -> TaskSpec | None:
    """The spec, or None if the body is not one."""
    try:
        return TaskSpec.model_validate(json.loads(body))
    except (ValueError, RecursionError):
        return None


router.add_api_route(
    "/tasks",
    create_task,
    status_code=201,
    operation_id="create_task",
    summary="Train a search space",
    description="Every configuration of the search space becomes a job. The answer is the task, which is `validating`.",
    response_model=TaskResource,
    responses=problems(400, 409, 413, 422),
    methods=["POST"],
    route_class_override=_SubmitRoute,
)
