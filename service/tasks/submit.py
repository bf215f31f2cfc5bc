"""POST /v1/tasks: how a task comes to be made. What making one means is in actions.py."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from contract.spec import TaskSpec
from service.answers import problems
from service.db import Database
from service.kept import Claim
from service.once import Once
from service.queue import Queue
from service.seats import Submitting, seated
from service.state import Wakes, state_of
from service.tasks import actions
from service.tasks.polls import etag_of
from service.tasks.resource import TaskResource, render_new
from service.tenants.auth import Db, Writer, admit
from service.tenants.keys import Principal, Scope

router = APIRouter(prefix="/v1", tags=["tasks"], responses=problems(401, 403))

_QUICK_BYTES = 2**16  # of a body that the event loop reads itself


def create_task(spec: TaskSpec, writer: Writer, db: Db, queue: Wakes, claim: Once, seat: Submitting) -> Response:
    return _submit(spec, writer, db, queue, claim)


def _submit(spec: TaskSpec, writer: Principal, db: Database, queue: Queue, claim: Claim) -> Response:
    with db.begin() as session:
        resource = render_new(actions.create(session, queue, writer, spec), spec.search_space.size)
        headers = {"Location": f"/v1/tasks/{resource.id}", "ETag": etag_of(resource.version)}
        claim.keep(session, 201, resource, headers)
    return Response(resource.model_dump_json(), 201, headers, "application/json")


class _SubmitRoute(APIRoute):
    """Hands a plain, well-formed submission to _submit itself: FastAPI takes as long as all that is done for it. All others
    are FastAPI's, which says what is wrong with them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            spec = await _plain_spec(request)
            if spec is None:
                return await usual(request)
            writer, db = await admit(request, Scope.WRITE)
            claim = Claim(writer.tenant_id, None, "")
            async with seated(request, "submissions"):
                return await run_in_threadpool(_submit, spec, writer, db, state_of(request).queue, claim)

        return handle


async def _plain_spec(request: Request) -> TaskSpec | None:
    """The spec of a request that consists of it, and is read quickly."""
    headers = request.headers
    if headers.get("content-type") != "application/json" or "idempotency-key" in headers:
        return None
    body = await request.body()
    if len(body) > _QUICK_BYTES:
        return None
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
