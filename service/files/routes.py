"""Files over HTTP: immutable JSONL data sets."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from service.app_state import BaseFoldersDep, BaseTokenizers, Store
from service.authentication import Db, Reader, Writer
from service.files import actions
from service.files.import_routes import NewFileImport
from service.files.imports import actions as imports
from service.files.imports.resource import FoundFileResource, ImportedFileResource
from service.files.models import File, FileImport
from service.files.multipart_upload import Received
from service.files.resource import FileResource
from service.files.row_preview import PreviewRequest, PreviewResource, preview
from service.fleet.base_models.base_folders import BaseTokenizer
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import bytes_of, problems
from service.idempotency.repeated_requests import IdempotencyKey as IdempotencyKey
from service.idempotency.repeated_requests import claim_key_of_body
from service.storage.downloads import send_object
from service.tasks.submission import spec_checks

router = APIRouter(prefix="/v1/files", tags=["files"], responses=problems(401, 403))

Unused = Annotated[bool | None, Query(description="Only files that no task names, or (false) only others; left out, all")]

Status = Annotated[
    Literal["ready", "importing", "failed"],
    Query(description="`ready`: files; otherwise those that were named by a source and are not files (yet)"),
]

_PARTS = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "JSONL in UTF-8"},
        "name": {"type": "string", "maxLength": 255, "description": "Left out, the uploaded file's own name"},
    },
}


@router.post(
    "",
    status_code=201,
    operation_id="create_file",
    summary="Upload a data set, or name its source",
    description=(
        "An upload is multipart/form-data. JSON names a source, which is imported in the background: poll the file until its "
        "`status` is `ready`. Its size, licence and commit are told at once, with `dry_run` alone.\n\n"
        'JSONL, one example a line, all of one format: `{"messages": [{"role": "user", "content": "…"}, …]}` with at least '
        'one assistant turn, or `{"prompt": "…", "completion": "…"}`. Every line is checked; a refusal lists the first 100 '
        "mistakes by line and field, and `error_count` says how many there are. A byte order mark and blank lines are dropped: "
        "what is stored, and its `sha256`, are the rows alone."
    ),
    responses=problems(400, 409, 413, 422, 503)
    | {
        200: {"description": "What would be imported (`dry_run`)", "model": FoundFileResource},
        201: {"description": "The file, or the import of one", "model": FileResource | ImportedFileResource},
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {"schema": _PARTS},
                "application/json": {"schema": NewFileImport.model_json_schema()},
            },
        }
    },
)
def create_file(
    writer: Writer, upload: Received, db: Db, request: Request, idempotency_key: IdempotencyKey = None
) -> FileResource:
    data = upload.intake.finish()
    with claim_key_of_body(request, writer, idempotency_key, data.stored.sha256, upload.name) as claim, db.begin() as session:
        resource = FileResource.of(actions.keep(session, writer, upload.name, data))
        claim.store_answer(session, 201, resource, {})
    return resource


@router.get("", operation_id="list_files", summary="List files, the newest first", responses=problems(422))
def list_files(
    reader: Reader, db: Db, unused: Unused = None, status: Status = "ready", cursor: Cursor = None, limit: Limit = 20
) -> Page[FileResource | ImportedFileResource]:
    with db.begin() as session:
        if status != "ready":
            coming = imports.imports_of(reader, status)
            return page(session, coming, FileImport, cursor, limit, lambda rows: [ImportedFileResource.of(r) for r in rows])
        files = actions.files_of(reader, unused)
        return page(session, files, File, cursor, limit, lambda rows: [FileResource.of(f) for f in rows])


@router.post(
    "/preview",
    operation_id="preview_file",
    summary="See rows as a task would train on them",
    description=(
        "The first rows of a file, or those from a line on, as tokens of a base model: their text, which of them are learned, "
        "what is cut to `max_seq_len`, and what is wrong with a row. The rules are training's own. Nothing is stored."
    ),
    responses=problems(400, 413, 422),
)
def preview_file(
    asked: PreviewRequest, reader: Reader, db: Db, storage: Store, tokenizers: BaseTokenizers, folders: BaseFoldersDep
) -> PreviewResource:
    with db.begin() as session:
        file, model = spec_checks.for_preview(
            session, reader, asked.file_id, asked.base_model, asked.objective, asked.max_seq_len
        )
        held, revision = BaseTokenizer.of(session, model), model.revision
    return preview(storage, tokenizers, asked, file, folders.folder_of(held, storage), revision)


@router.get("/{file_id}", operation_id="get_file", summary="Get a file's description", responses=problems(404))
def get_file(file_id: str, reader: Reader, db: Db) -> FileResource | ImportedFileResource:
    with db.begin() as session:
        row = imports.find_import(session, reader, file_id)
        if row is not None and row.status != imports.READY:
            return ImportedFileResource.of(row)
        file = actions.find_file(session, reader, file_id)
        return FileResource.of(file) if row is None else ImportedFileResource.of(row, file)


@router.head("/{file_id}/content", include_in_schema=False)
@router.get(
    "/{file_id}/content",
    operation_id="get_file_content",
    summary="Download a file's rows as they were uploaded",
    response_class=Response,
    responses=bytes_of("application/jsonl", "The file's bytes") | problems(404, 416),
)
def get_file_content(file_id: str, reader: Reader, db: Db, storage: Store, request: Request) -> Response:
    with db.begin() as session:
        file = actions.find_file(session, reader, file_id)
    return send_object(request, storage, file.sha256, file.name, "application/jsonl")


@router.delete(
    "/{file_id}",
    status_code=204,
    operation_id="delete_file",
    summary="Delete a file",
    description=(
        "Refused while a task that has not ended needs it; the refusal names the tasks. One that is still imported is given up."
    ),
    responses=problems(404, 409),
)
def delete_file(file_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        if not imports.give_up(session, writer, file_id):
            actions.delete(session, writer, file_id)
