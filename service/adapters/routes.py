"""Adapter routes: list, describe, delete, download file by file or as an archive; and a task's winner."""

import zlib
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from contract.states import TASK_TERMINAL, TaskStatus
from service.adapters import actions
from service.adapters.adapter_archive import tar_gz
from service.adapters.adapter_readme import NAME
from service.adapters.additional_files import additional_files
from service.adapters.models import Adapter
from service.adapters.resource import AdapterResource
from service.app_state import Store
from service.authentication import Db, NotedDb, Reader, Writer
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import Conflict, NotFound
from service.http.response_schemas import bytes_of, problems
from service.storage.downloads import ObjectLost, attachment, caller_of, matches, redirect, send_object, send_opened
from service.storage.object_store import ObjectMissing, Storage
from service.tasks.adapter_queries import adapters_of
from service.tasks.models import Task
from service.tenants.tenant_scope import find

router = APIRouter(prefix="/v1", tags=["adapters"], responses=problems(401, 403))

_MEDIA_TYPE = "application/gzip"
_ARCHIVE = bytes_of(_MEDIA_TYPE, "A tar.gz with one folder, which PEFT and vLLM load as it is") | {
    304: {"description": "The archive is still the one in If-None-Match"}
}


class NotYet(Conflict):
    """The task has not ended; `task_status` holds its status."""

    code, title = "no_adapter_yet", "The winner is not known yet"


class NoAdapter(NotFound):
    code, title = "no_adapter", "The task has no adapter"


Origin = Literal["trained", "uploaded", "any"]


@router.get("/adapters", operation_id="list_adapters", summary="List adapters, the newest first", responses=problems(422))
def list_adapters(
    reader: Reader,
    db: Db,
    task_id: Annotated[str | None, Query(max_length=128, description="Only those of this task")] = None,
    origin: Annotated[Origin, Query(description="Uploaded ones are listed if asked for: older clients cannot")] = "trained",
    cursor: Cursor = None,
    limit: Limit = 20,
) -> Page[AdapterResource]:
    with db.begin() as session:
        adapters = adapters_of(reader)
        if task_id is not None:
            adapters = adapters.where(Adapter.task_id == task_id)
        if origin != "any":
            adapters = adapters.where(Adapter.task_id.is_(None) if origin == "uploaded" else Adapter.task_id.is_not(None))
        return page(session, adapters, Adapter, cursor, limit, lambda rows: [AdapterResource.of(a) for a in rows])


@router.get("/adapters/{adapter_id}", operation_id="get_adapter", summary="Get an adapter's manifest", responses=problems(404))
def get_adapter(adapter_id: str, reader: Reader, db: NotedDb) -> AdapterResource:
    with db.begin() as session:
        return AdapterResource.of(actions.find_adapter(session, reader, adapter_id))


@router.delete(
    "/adapters/{adapter_id}",
    status_code=204,
    operation_id="delete_adapter",
    summary="Delete an adapter for good",
    description=(
        "Refused while the task that made it, or one that starts from it, has not ended; the refusal names the tasks. A task "
        "whose winner is deleted says so in its `winner`. Deleting twice is deleting once."
    ),
    responses=problems(404, 409),
)
def delete_adapter(adapter_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        actions.delete(session, writer, adapter_id)


@router.head("/adapters/{adapter_id}/files/{path}", include_in_schema=False)
@router.get(
    "/adapters/{adapter_id}/files/{path}",
    operation_id="get_adapter_file",
    summary="Download one file of an adapter",
    description="The file's sha256 is its ETag. A byte range may be asked for.",
    response_class=Response,
    responses=bytes_of("application/octet-stream", "The file's bytes") | problems(404, 416),
)
def get_adapter_file(adapter_id: str, path: str, reader: Reader, db: NotedDb, storage: Store, request: Request) -> Response:
    with db.begin() as session:
        adapter = actions.find_adapter(session, reader, adapter_id)
        texts = additional_files(session, reader, adapter) if path == NAME else {}
    files = {file.path: file for file in adapter.folder.files}
    if path in texts:
        return Response(texts[path], media_type="text/markdown")
    if path not in files:
        raise NotFound(f"The adapter has no file {path!r}; it has {', '.join(sorted(files))}.")
    media_type = "application/json" if path.endswith(".json") else "application/octet-stream"
    return send_object(request, storage, files[path].sha256, path, media_type)


@router.head("/adapters/{adapter_id}/archive", include_in_schema=False)
@router.get(
    "/adapters/{adapter_id}/archive",
    operation_id="get_adapter_archive",
    summary="Download an adapter as a tar.gz",
    response_class=Response,
    description="Its ETag changes with its bytes. A byte range may be asked for.",
    responses=_ARCHIVE | problems(404, 416),
)
def get_adapter_archive(adapter_id: str, reader: Reader, db: NotedDb, storage: Store, request: Request) -> Response:
    with db.begin() as session:
        adapter = actions.find_adapter(session, reader, adapter_id)
        texts = additional_files(session, reader, adapter)
    return send_archive(request, storage, adapter, texts)


@router.head("/tasks/{task_id}/adapter", include_in_schema=False)
@router.get(
    "/tasks/{task_id}/adapter",
    operation_id="get_task_adapter",
    summary="Download the winner's adapter as a tar.gz",
    response_class=Response,
    description="Its ETag changes with its bytes. A byte range may be asked for.",
    responses=_ARCHIVE | problems(404, 409, 416),
)
def get_task_adapter(task_id: str, reader: Reader, db: NotedDb, storage: Store, request: Request) -> Response:
    with db.begin() as session:
        task = find(session, Task, task_id, reader, "task")
        if task.status not in TASK_TERMINAL:
            hint = f"wait for its end with GET /v1/tasks/{task_id}?wait=60"
            raise NotYet(f"The task is {task.status}; {hint}.", task_status=task.status)
        if task.winner_job_id is None:
            raise NoAdapter(_why_none(task), task_status=task.status)
        adapter = actions.winner_of(session, reader, task)
        texts = additional_files(session, reader, adapter)
    return send_archive(request, storage, adapter, texts)


def _why_none(task: Task) -> str:
    if task.status == TaskStatus.FAILED:
        return f"The task failed: {task.error}"
    return f"The task was cancelled before it had a winner; GET /v1/adapters?task_id={task.id} lists what its jobs had kept."


def send_archive(request: Request, storage: Storage, adapter: Adapter, texts: Mapping[str, bytes]) -> Response:
    """Respond with the adapter's folder and `texts` (by name) as a tar.gz, the requested range of it, a redirect to it, to HEAD
    its headers alone, or 304 if the caller has it.

    Raises ObjectLost or RangeOutside.
    """
    files = adapter.folder.files
    named = [*(f"{file.path} {file.sha256}" for file in files), *(f"{n} {sha256(t).hexdigest()}" for n, t in texts.items())]
    identity = "\n".join([adapter.id, zlib.ZLIB_RUNTIME_VERSION, *named])  # another zlib may write other bytes
    etag = f'"{sha256(identity.encode()).hexdigest()}"'
    filename = f"{adapter.id}.tar.gz"
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": attachment(filename),
        "Cache-Control": "private, no-cache",
    }
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    made = partial(tar_gz, storage, adapter.id, files, int(adapter.created_at.timestamp()), texts)
    try:
        name, head = f"{etag.strip(chr(34))}/{filename}", request.method == "HEAD"
        if not head and (url := storage.presign_derived(name, _MEDIA_TYPE, made, caller_of(request))) is not None:
            return redirect(url)
        if (head or "range" in request.headers) and (kept := storage.derive(name, made)) is not None:
            return send_opened(request, kept, etag, filename, _MEDIA_TYPE)
        blocks = made()  # without being kept, so that its first bytes come at once
        first = next(blocks)
    except ObjectMissing:
        raise ObjectLost("A file of the adapter is missing from storage; please report this.") from None
    return StreamingResponse(chain([first], blocks), 200, headers, _MEDIA_TYPE)
