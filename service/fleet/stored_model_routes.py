"""HTTP routes for admins: base models whose files they upload to storage, and the end of any base model."""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from contract.messages.placement_messages import BASE_FILE_PATH, BaseFile
from contract.strict import Sha256, Strict
from service.app_state import Store
from service.authentication import Admin, AdminDb
from service.fleet.base_models import model_catalog
from service.fleet.base_models.copies import uploaded_base
from service.fleet.base_models.gpu_fit import fits_of, gpus_of
from service.fleet.base_models.resource import ModelResource
from service.fleet.base_models.routes import ModelName, too_large
from service.http.problems import invalid_field
from service.http.request_bodies import pour
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey
from service.storage.object_store import ObjectMismatch

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=problems(401, 403, 422))

_MOST_BYTES = 64 * 2**30  # of a file
_MOST_FILES = 2000


class ModelFile(Strict):
    path: Annotated[str, Field(pattern=BASE_FILE_PATH)] = Field(description="The file's place in the model's folder")
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0, le=_MOST_BYTES)]


class ModelFiles(Strict):
    files: Annotated[list[ModelFile], Field(min_length=1, max_length=_MOST_FILES)]

    def as_files(self) -> list[BaseFile]:
        return [BaseFile(path=file.path, sha256=file.sha256, bytes=file.bytes) for file in self.files]


class NewStoredModel(ModelFiles):
    name: ModelName


class MissingFiles(BaseModel):
    sha256: list[str] = Field(description="Of the files that storage does not hold, to be sent with PUT")


@router.post(
    "/model-files",
    operation_id="find_missing_model_files",
    summary="Tell which files of a base model storage lacks",
    description="Changes nothing, but that those which are there stay for another day.",
    responses=problems(503),
)
def find_missing(wanted: ModelFiles, admin: Admin, storage: Store) -> MissingFiles:
    return MissingFiles(sha256=uploaded_base.missing(storage, wanted.as_files()))


@router.put(
    "/model-files/{sha256}",
    status_code=204,
    operation_id="put_model_file",
    summary="Upload a file of a base model",
    description="The body is the file's bytes. It goes after a day, unless POST /v1/admin/stored-models names it before.",
    responses=problems(413, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_model_file(sha256: Sha256, admin: Admin, storage: Store, request: Request) -> None:
    incoming = await run_in_threadpool(storage.receive)
    try:
        await pour(request, incoming.write, _MOST_BYTES)
        await run_in_threadpool(incoming.commit, sha256)
    except ObjectMismatch as error:
        raise invalid_field("body", "object_mismatch", str(error)) from None
    finally:
        await run_in_threadpool(incoming.abandon)


@router.post(
    "/stored-models",
    status_code=201,
    operation_id="allow_stored_model",
    summary="Allow a base model whose files were uploaded",
    description=(
        "config.json, tokenizer.json, other small files that are known, and the weights as safetensors. Nodes fetch them "
        "from storage. Again for the same name: brings the entry up to date."
    ),
    responses=problems(409, 503),
)
def allow_stored_model(new: NewStoredModel, db: AdminDb, storage: Store, claim: AdminClaimedKey) -> ModelResource:
    with db.begin() as session:
        gpus = gpus_of(session)
    row, files = uploaded_base.read_uploaded(storage, new.name, new.as_files())
    fits = fits_of(gpus, row.parameters)
    if fits and not any(fit.fits for fit in fits):
        raise too_large("files", row.parameters, fits)
    with db.begin() as session:
        allowed = ModelResource.of(session, model_catalog.allow(session, row, files))
        claim.store_answer(session, 201, allowed, {})
    return allowed


@router.delete(
    "/models/{name:path}",
    status_code=204,
    operation_id="remove_model",
    summary="Take a base model off the list",
    description=(
        "Refused while a task or a merge that has not ended needs it. Its files go from storage with the next sweep, once they "
        "are a day old; nodes forget them as they need the room. Adapters that were trained on it stay."
    ),
    responses=problems(404, 409),
)
def remove_model(name: str, db: AdminDb) -> None:
    with db.begin() as session:
        model_catalog.remove(session, name)
