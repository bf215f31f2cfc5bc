"""HTTP routes of tasks and jobs that exist (POST: submission/routes.py). All are sync except get_task and the event stream,
which hold no thread while they wait."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from contract.states import TaskStatus
from service.app_state import DependenciesDep, Events, PollCacheDep, QueueDep, WakeupsDep, state_of
from service.authentication import Db, Reader, StillAllowed, Writer, admit
from service.http.pagination import Cursor, Limit, Page, page
from service.http.request_bodies import NO_BODY
from service.http.response_schemas import event_stream, event_stream_of, problems
from service.storage.downloads import matches
from service.tasks import actions
from service.tasks.curves.curve_reader import MAX_RESOLUTION, Metrics, Series, Window, coarse_curves, curves
from service.tasks.job_resource import JobResource, find_job, jobs_of_task
from service.tasks.milestone_evaluations import milestone_scores, milestones_page
from service.tasks.models import Task
from service.tasks.resource import TaskResource, render
from service.tasks.text_evaluations import TextEvaluationResource, as_csv, evaluations_page, scores_of_task
from service.tenants.api_keys import Scope
from service.tenants.tenant_scope import find

MAX_WAIT = 60.0

router = APIRouter(prefix="/v1", tags=["tasks"], responses=problems(401, 403))

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for a change, if there is none yet")]
Step = Annotated[int, Query(ge=0, le=2**31 - 1)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
At = Annotated[
    Literal["end", "milestones"],
    Query(
        description="end: of the base, and of jobs that kept an adapter; milestones: of jobs in the midst of training, and, "
        "where a text metric ranks them there, at the end of warmup"
    ),
]
Label = Annotated[str, Field(pattern=r"^[^=\x00]{1,128}=[^\x00]{0,512}$")]
Text = Annotated[
    str | None,
    Query(max_length=128, pattern=r"^[^\x00]*$", description="Only those with this text in their name or id, in any case"),
]


@router.get("/tasks", operation_id="list_tasks", summary="List tasks, the newest first", responses=problems(422))
def list_tasks(
    reader: Reader,
    db: Db,
    status: Annotated[list[TaskStatus], Query(description="Only these; may be repeated")] = [],  # noqa: B006  (FastAPI copies it)
    label: Annotated[list[Label], Query(description="Only those with `key=value`; may be repeated", max_length=16)] = [],  # noqa: B006
    archived: Annotated[bool | None, Query(description="Only archived ones, or (false) only others; left out, all")] = None,
    base_model: Annotated[
        str | None, Query(max_length=128, pattern=r"^[^\x00]*$", description="Only those on this base model")
    ] = None,
    text: Text = None,
    cursor: Cursor = None,
    limit: Limit = 20,
) -> Page[TaskResource]:
    labels = dict(one.split("=", 1) for one in label)
    with db.begin() as session:
        tasks = actions.select_tasks(reader, status, labels, archived, base_model, text)
        return page(session, tasks, Task, cursor, limit, lambda rows: render(session, rows))


async def get_task(task_id: str, reader: Reader, polls: PollCacheDep, request: Request, wait: Wait = 0) -> Response:
    known = request.headers.get("if-none-match")
    version = await polls.changed(reader, task_id, known, wait) if wait > 0 else None
    if version is not None and matches(known, version.etag):
        return _same(version.etag)
    answer = await polls.answer(reader, task_id, version)
    if version is None and matches(known, answer.etag):
        return _same(answer.etag)
    return Response(answer.text, headers=_headers(answer.etag), media_type="application/json")


class _PollRoute(APIRoute):
    """Calls get_task directly for a poll without a query: FastAPI's dependency resolution takes longer than the answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.scope["query_string"]:
                return await usual(request)
            reader = await admit(request, Scope.READ)
            return await get_task(request.path_params["task_id"], reader, state_of(request).polls, request)

        return handle


router.add_api_route(
    "/tasks/{task_id}",
    get_task,
    operation_id="get_task",
    summary="Get a task, now or once it changes",
    description=(
        "The answer has an ETag. With `wait`, it comes as soon as the task differs from the version in If-None-Match (without "
        "that header: from what it is now), at once if the task has ended, and after `wait` seconds in any case. That a queued "
        "task's place or times moved a little wakes nobody, but gives it another ETag: the next answer shows it."
    ),
    response_model=TaskResource,
    responses=problems(404, 422) | {304: {"description": "The task is still the version in If-None-Match"}},
    methods=["GET"],
    route_class_override=_PollRoute,
)


def _same(etag: str) -> Response:
    return Response(status_code=304, headers=_headers(etag))


def _headers(etag: str) -> dict[str, str]:
    return {"ETag": etag, "Cache-Control": "private, no-cache"}


@router.post(
    "/tasks/{task_id}/cancel",
    operation_id="cancel_task",
    summary="Cancel a task",
    description="Takes effect at once and for good. Adapters that were committed stay. Cancelling twice is cancelling once.",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def cancel_task(task_id: str, writer: Writer, db: Db, queue: QueueDep, wakeups: WakeupsDep) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.cancel(session, queue, wakeups, writer, task_id)])[0]


@router.post(
    "/tasks/{task_id}/pause",
    operation_id="pause_task",
    summary="Pause a task",
    description=(
        "A queued task is paused at once. A running one first brings its jobs to safety: until then it stays `running` with "
        "`desired_status` `paused`, and loses no step. Pausing twice is pausing once."
    ),
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def pause_task(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.pause(session, dependencies, writer, task_id)])[0]


@router.post(
    "/tasks/{task_id}/resume",
    operation_id="resume_task",
    summary="Resume a paused task",
    description="It is `queued` again and goes on from where it stood. One that is not paused stays as it is.",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def resume_task(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.resume(session, dependencies, writer, task_id)])[0]


@router.post(
    "/tasks/{task_id}/archive",
    operation_id="archive_task",
    summary="Put an ended task out of sight, or back",
    description="Lists that ask for `archived=false` leave it out. Nothing of it is lost.",
    responses=problems(404, 409, 422),
    dependencies=[NO_BODY],
)
def archive_task(task_id: str, writer: Writer, db: Db, archived: bool = True) -> TaskResource:
    with db.begin() as session:
        return render(session, [actions.archive(session, writer, task_id, archived)])[0]


@router.delete(
    "/tasks/{task_id}",
    status_code=204,
    operation_id="delete_task",
    summary="Delete an ended task for good, with its jobs, curves and adapters",
    description="It is gone at once; what storage holds of it is removed when the retention is over. Usage keeps counting it.",
    responses=problems(404, 409),
)
def delete_task(task_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        actions.delete(session, writer, task_id)


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
    description="With `resolution`, in buckets of steps: the mean, the least and the greatest loss of each.",
    responses=problems(404, 422),
)
def get_task_metrics(
    task_id: str,
    reader: Reader,
    db: Db,
    job: Annotated[list[Index], Query(description="Job indexes; may be repeated")] = [],  # noqa: B006
    series: Annotated[list[Series], Query(description="May be repeated")] = [],  # noqa: B006
    from_step: Step = 0,
    to_step: Step | None = None,
    resolution: Annotated[
        int | None, Query(ge=1, le=MAX_RESOLUTION, description="About how many points a curve may have")
    ] = None,
) -> Metrics:
    window = Window(job, series, from_step, to_step)
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        if resolution is not None:
            return coarse_curves(session, reader, task_id, window, resolution)
        return curves(session, reader, task_id, window)


@router.get(
    "/tasks/{task_id}/evaluations",
    operation_id="list_task_evaluations",
    summary="List how the texts of the base and of the kept adapters were scored",
    description="The base's first, then the jobs' in index order; or, with `at=milestones`, those in the midst of training, in "
    "order of the jobs' indexes, then of the milestones. Empty where the spec asks for no evaluation.",
    responses=problems(404, 422),
)
def list_task_evaluations(
    task_id: str, reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20, at: At = "end"
) -> Page[TextEvaluationResource]:
    page = evaluations_page if at == "end" else milestones_page
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        return page(session, reader, task_id, cursor, limit)


@router.get(
    "/tasks/{task_id}/evaluations.csv",
    operation_id="get_task_evaluations_csv",
    summary="Get the scores as CSV, a line for each metric of each evaluation",
    response_class=Response,
    responses=problems(404) | {200: {"content": {"text/csv": {"schema": {"type": "string"}}}, "description": "The scores"}},
)
def get_task_evaluations_csv(task_id: str, reader: Reader, db: Db, at: At = "end") -> Response:
    scores = scores_of_task if at == "end" else milestone_scores
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        return Response(as_csv(scores(session, reader, task_id)), media_type="text/csv")


@router.get(
    "/tasks/{task_id}/events",
    operation_id="stream_task_events",
    summary="Follow what happens to a task",
    description=(
        "Server-sent events from the task's first one on, or from after the number in Last-Event-ID (or `after`). They have "
        "no gaps, so a reader that comes again misses nothing. Types: status, activations, base, job, curves, adapter, "
        "rewind (points of "
        "`job` beyond `step` do not count any more). The stream ends with the task; asked for more, the answer is 204."
    ),
    response_class=Response,
    responses=event_stream_of("The task has ended, and all its events were read") | problems(404, 422),
)
async def stream_task_events(
    task_id: str,
    reader: Reader,
    db: Db,
    feed: Events,
    allowed: StillAllowed,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=2**63 - 1, description="Number of the last event that was read")
    ] = None,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="The same, for readers that cannot send headers")] = 0,
) -> Response:
    first = await feed.after(db, reader, task_id, after if last_event_id is None else last_event_id)
    if first.over and not first.text:
        return Response(status_code=204)
    return event_stream(feed.stream(db, reader, task_id, first, allowed))


@router.get("/jobs/{job_id}", operation_id="get_job", summary="Get a job", responses=problems(404))
def get_job(job_id: str, reader: Reader, db: Db) -> JobResource:
    with db.begin() as session:
        return find_job(session, reader, job_id)
