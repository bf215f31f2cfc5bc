"""Tasks and their jobs over HTTP. All is sync but one route: whoever waits for a task to change holds no thread meanwhile."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from contract.spec import TaskSpec
from contract.states import TASK_TERMINAL, TaskStatus
from service.answers import problems
from service.db import Database
from service.downloads import matches
from service.pages import Cursor, Limit, Page, page
from service.state import NodeHints, Wakes, Watch, Works
from service.tasks import actions
from service.tasks.jobs import JobResource, find_job, jobs_of_task
from service.tasks.metrics import Metrics, Series, Window, curves
from service.tasks.models import Task
from service.tasks.resource import TaskResource, render
from service.tenants.auth import Db, Reader, Writer
from service.tenants.keys import Principal
from service.tenants.scope import find

MAX_WAIT = 60.0

router = APIRouter(prefix="/v1", tags=["tasks"], responses=problems(401, 403))

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for a change, if there is none yet")]
Step = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.post(
    "/tasks",
    status_code=201,
    operation_id="create_task",
    summary="Train a search space",
    description="Every configuration of the search space becomes a job. The answer is the task, which is `validating`.",
    responses=problems(400, 413, 422),
)
def create_task(spec: TaskSpec, writer: Writer, db: Db, queue: Wakes, response: Response) -> TaskResource:
    with db.begin() as session:
        resource = render(session, [actions.create(session, queue, writer, spec)])[0]
    response.headers["Location"] = f"/v1/tasks/{resource.id}"
    response.headers["ETag"] = _etag(resource)
    return resource


@router.get("/tasks", operation_id="list_tasks", summary="List tasks, the newest first", responses=problems(422))
def list_tasks(
    reader: Reader,
    db: Db,
    status: Annotated[list[TaskStatus], Query(description="Only these; may be repeated")] = [],  # noqa: B006  (FastAPI copies it)
    cursor: Cursor = None,
    limit: Limit = 20,
) -> Page[TaskResource]:
    with db.begin() as session:
        return page(session, actions.tasks_of(reader, status), Task, cursor, limit, lambda tasks: render(session, tasks))


@router.get(
    "/tasks/{task_id}",
    operation_id="get_task",
    summary="Get a task, now or once it changes",
    description=(
        "The answer has an ETag. With `wait`, it comes as soon as the task differs from the version in If-None-Match (without "
        "that header: from what it is now), at once if the task has ended, and after `wait` seconds in any case."
    ),
    response_model=TaskResource,
    responses=problems(404, 422) | {304: {"description": "The task is still the version in If-None-Match"}},
)
async def get_task(task_id: str, reader: Reader, db: Db, watcher: Watch, request: Request, wait: Wait = 0) -> Response:
    known = request.headers.get("if-none-match")
    loop = asyncio.get_running_loop()
    until = loop.time() + wait
    with watcher.watch(task_id) as changed:
        task = await run_in_threadpool(_load, db, reader, task_id)
        seen = known if known is not None else _etag(task)
        while matches(seen, _etag(task)) and task.status not in TASK_TERMINAL and not watcher.released:
            try:
                await asyncio.wait_for(changed.wait(), until - loop.time())
            except TimeoutError:
                break
            changed.clear()
            task = await run_in_threadpool(_load, db, reader, task_id)
    headers = {"ETag": _etag(task), "Cache-Control": "private, no-cache"}
    if matches(known, _etag(task)):
        return Response(status_code=304, headers=headers)
    return JSONResponse(task.model_dump(mode="json"), headers=headers)


def _load(db: Database, principal: Principal, task_id: str) -> TaskResource:
    with db.begin() as session:
        return render(session, [find(session, Task, task_id, principal, "task")])[0]


def _etag(task: TaskResource) -> str:
    return f'"{task.version}"'


@router.post(
    "/tasks/{task_id}/cancel",
    operation_id="cancel_task",
    summary="Cancel a task",
    description="Takes effect at once and for good. Adapters that were committed stay. Cancelling twice is cancelling once.",
    responses=problems(404, 409),
)
def cancel_task(task_id: str, writer: Writer, db: Db, queue: Wakes, hints: NodeHints) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.cancel(session, queue, hints, writer, task_id)])[0]


@router.post(
    "/tasks/{task_id}/pause",
    operation_id="pause_task",
    summary="Pause a task",
    description=(
        "A queued task is paused at once. A running one first brings its jobs to safety: until then it stays `running` with "
        "`desired_status` `paused`, and loses no step. Pausing twice is pausing once."
    ),
    responses=problems(404, 409),
)
def pause_task(task_id: str, writer: Writer, db: Db, parts: Works) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.pause(session, parts, writer, task_id)])[0]


@router.post(
    "/tasks/{task_id}/resume",
    operation_id="resume_task",
    summary="Resume a paused task",
    description="It is `queued` again and goes on from where it stood. One that is not paused stays as it is.",
    responses=problems(404, 409),
)
def resume_task(task_id: str, writer: Writer, db: Db, parts: Works) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.resume(session, parts, writer, task_id)])[0]


@router.get(
    "/tasks/{task_id}/jobs",
    operation_id="list_task_jobs",
    summary="List a task's jobs in index order, all on one page",
    responses=problems(404),
)
def list_task_jobs(task_id: str, reader: Reader, db: Db) -> Page[JobResource]:
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        return Page(data=jobs_of_task(session, reader, task_id), next_cursor=None)


@router.get(
    "/tasks/{task_id}/metrics",
    operation_id="get_task_metrics",
    summary="Get a task's loss curves",
    responses=problems(404, 422),
)
def get_task_metrics(
    task_id: str,
    reader: Reader,
    db: Db,
    job: Annotated[list[int], Query(description="Job indexes; may be repeated")] = [],  # noqa: B006
    series: Annotated[list[Series], Query(description="May be repeated")] = [],  # noqa: B006
    from_step: Step = 0,
    to_step: Step | None = None,
) -> Metrics:
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        return curves(session, reader, task_id, Window(job, series, from_step, to_step))


@router.get("/jobs/{job_id}", operation_id="get_job", summary="Get a job", responses=problems(404))
def get_job(job_id: str, reader: Reader, db: Db) -> JobResource:
    with db.begin() as session:
        return find_job(session, reader, job_id)
