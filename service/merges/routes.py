"""Routes of merged models: ask for one, list, describe, download file by file, delete."""

from fastapi import APIRouter, Request, Response

from service.app_state import Store
from service.authentication import Db, NotedDb, Reader, Writer
from service.http.pagination import Cursor, Limit, Page, page
from service.http.response_schemas import bytes_of, problems
from service.idempotency.repeated_requests import ClaimedKey
from service.merges import merge_requests
from service.merges.merge_requests import NewMergedModel
from service.merges.models import MergedModel
from service.merges.resource import MergedModelResource
from service.storage.downloads import send_object

router = APIRouter(prefix="/v1/merged-models", tags=["merged models"], responses=problems(401, 403))


@router.post(
    "",
    status_code=201,
    operation_id="create_merged_model",
    summary="Merge an adapter into its base",
    description=(
        "A node adds the adapter to the base's weights (in float32, rounded to bf16) on its CPU, beside training, and stores a "
        "folder of sharded safetensors that needs no adapter to be loaded. Poll it until its `status` is `ready` or `failed`. "
        "Its files count as stored bytes and expire; adapters do not."
    ),
    responses=problems(404, 409, 422),
)
def create_merged_model(new: NewMergedModel, writer: Writer, db: Db, claim: ClaimedKey) -> MergedModelResource:
    with db.begin() as session:
        made = MergedModelResource.of(merge_requests.begin(session, writer, new))
        claim.store_answer(session, 201, made, {})
    return made


@router.get("", operation_id="list_merged_models", summary="List merged models, the newest first", responses=problems(422))
def list_merged_models(reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20) -> Page[MergedModelResource]:
    with db.begin() as session:
        own = merge_requests.merged_models(reader)
        return page(session, own, MergedModel, cursor, limit, lambda rows: [MergedModelResource.of(row) for row in rows])


@router.get("/{merged_id}", operation_id="get_merged_model", summary="Get a merged model", responses=problems(404))
def get_merged_model(merged_id: str, reader: Reader, db: Db) -> MergedModelResource:
    with db.begin() as session:
        return MergedModelResource.of(merge_requests.find_merged(session, reader, merged_id))


@router.head("/{merged_id}/files/{file}", include_in_schema=False)
@router.get(
    "/{merged_id}/files/{file}",
    operation_id="get_merged_model_file",
    summary="Download one file of a merged model",
    description="The file's sha256 is its ETag. A byte range may be asked for.",
    response_class=Response,
    responses=bytes_of("application/octet-stream", "The file's bytes") | problems(404, 416),
)
def get_merged_model_file(merged_id: str, file: str, reader: Reader, db: NotedDb, storage: Store, request: Request) -> Response:
    with db.begin() as session:
        sha256 = merge_requests.file_of(merge_requests.find_merged(session, reader, merged_id), file)
    media_type = "application/json" if file.endswith(".json") else "application/octet-stream"
    return send_object(request, storage, sha256, file, media_type)


@router.delete(
    "/{merged_id}",
    status_code=204,
    operation_id="delete_merged_model",
    summary="Delete a merged model",
    description="One that is still merged is given up. The adapter stays.",
    responses=problems(404),
)
def delete_merged_model(merged_id: str, writer: Writer, db: Db) -> None:
    with db.begin() as session:
        merge_requests.delete(session, writer, merged_id)
