"""HTTP routes: base models for every tenant to read, for admins to allow."""

from collections.abc import Sequence
from io import BytesIO
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy import select

from contract.strict import Strict
from contract.wording.size_words import gibibytes
from service.app_state import HubDep, Store
from service.authentication import AdminDb, Db, Reader
from service.fleet import models
from service.fleet.base_models import hub_models, model_catalog
from service.fleet.base_models.gpu_fit import GpuFit, fits_of, gpus_of
from service.fleet.base_models.resource import BaseCopyResource, HubModelResource, ModelResource
from service.http.pagination import Page
from service.http.problems import Invalid, NotFound, invalid_field, shown
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey

router = APIRouter(prefix="/v1", responses=problems(401, 403, 422))

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)]


class NewModel(Strict):
    name: ModelName
    source: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]*$")] = Field(
        description="A folder with config.json, tokenizer.json and *.safetensors, at the same path on every node"
    )


class NewHubModel(Strict):
    source: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="`hf://organisation/name`")
    revision: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=255)] = Field(
        default="main", description="A branch, a tag or a commit; it is resolved to a commit at once"
    )
    name: ModelName | None = Field(default=None, description="By which tasks name it; left out, `organisation/name`")
    store: bool | None = Field(
        default=None,
        description=(
            "Copy its files to storage in the background, from which nodes fetch it then, and not from the hub. Left out, as "
            "it is; a new base is not copied"
        ),
    )
    dry_run: bool = Field(default=False, description="Tell all of it, and change nothing")


@router.get("/models", tags=["models"], operation_id="list_models", summary="List the base models that tasks may name")
def list_models(reader: Reader, db: Db) -> Page[ModelResource]:
    with db.begin() as session:
        allowed = select(models.BaseModel).where(models.BaseModel.enabled).order_by(models.BaseModel.name)
        return Page(data=[ModelResource.of(session, model) for model in session.scalars(allowed)], next_cursor=None)


@router.get(
    "/models/{name:path}", tags=["models"], operation_id="get_model", summary="Get a base model", responses=problems(404)
)
def get_model(name: str, reader: Reader, db: Db) -> ModelResource:
    with db.begin() as session:
        model = session.get(models.BaseModel, name)
        if model is None or not model.enabled:
            raise NotFound(f"There is no base model {shown(name)!r}; GET /v1/models lists what there is.")
        return ModelResource.of(session, model)


@router.post(
    "/models",
    tags=["models"],
    status_code=201,
    operation_id="add_model",
    summary="Allow a base model of the hub (admin)",
    description=(
        "Resolves the revision to a commit, checks that the model can be trained on and fits a GPU of the fleet, and says what "
        "a node will download. Nodes fetch it when a task needs it, from the hub, or with `store` from storage. Again for the "
        "same name: brings the entry up to date."
    ),
    responses=problems(409, 503) | {200: {"description": "What would be allowed (`dry_run`)", "model": HubModelResource}},
)
def add_model(
    new: NewHubModel, db: AdminDb, hub: HubDep, storage: Store, claim: AdminClaimedKey, response: Response
) -> HubModelResource:
    name = new.name or hub_models.repository_of(new.source)
    with db.begin() as session:
        gpus = gpus_of(session)
    found = hub_models.read_repository(hub, name, new.source, new.revision)
    fits = fits_of(gpus, found.row.parameters)
    told = HubModelResource.of(found, fits, new.dry_run)
    if new.dry_run:
        response.status_code = 200
        return told
    if fits and not any(fit.fits for fit in fits):
        raise too_large("source", found.row.parameters, fits)
    for file in found.files:
        if (content := found.contents.get(file.path)) is not None:
            storage.put(BytesIO(content), file.sha256, file.bytes)
    with db.begin() as session:
        model_catalog.allow(session, found.row, found.files, new.store)
        told.storage = BaseCopyResource.of(session, name)
        claim.store_answer(session, 201, told, {})
    return told


@router.post(
    "/admin/models",
    tags=["admin"],
    status_code=201,
    operation_id="allow_model",
    summary="Allow a base model in a folder of every node",
    description="Reads and pins the folder's weights. Again for the same name: brings the entry up to date.",
    responses=problems(409),
)
def allow_model(new: NewModel, db: AdminDb, claim: AdminClaimedKey) -> ModelResource:
    found = model_catalog.read_folder(new.name, new.source)
    with db.begin() as session:
        allowed = ModelResource.of(session, model_catalog.allow(session, found))
        claim.store_answer(session, 201, allowed, {})
    return allowed


def too_large(field: str, parameters: int, fits: Sequence[GpuFit]) -> Invalid:
    """The refusal of a base that fits no GPU of the fleet, nor the GPUs of any node together."""
    most = max(fits, key=lambda fit: fit.memory_bytes)
    return invalid_field(
        field,
        "too_large",
        f"its {parameters / 1e9:.1f} billion parameters fit no GPU of the fleet in any precision, nor those of a node "
        f"together; the roomiest, {most.type}, has {gibibytes(most.memory_bytes)}; name a smaller base, or add a "
        "node with larger GPUs",
    )
