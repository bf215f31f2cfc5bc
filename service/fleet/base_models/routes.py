"""HTTP routes: base models for every tenant to read, for admins to allow."""

from collections.abc import Sequence
from datetime import datetime
from io import BytesIO
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy import select

from contract.strict import Strict
from contract.task_spec import Precision
from service.app_state import HubDep, Store
from service.authentication import AdminDb, Db, Reader
from service.fleet import models
from service.fleet.base_models import hub_models, model_catalog
from service.fleet.base_models.gpu_fit import GpuFit, fits_of, gpus_of
from service.fleet.base_models.hub_models import HubModel
from service.http.pagination import Page
from service.http.problems import NotFound, invalid_field, shown
from service.http.response_schemas import problems
from service.idempotency.repeated_requests import AdminClaimedKey

router = APIRouter(prefix="/v1", responses=problems(401, 403, 422))

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)]


class ModelResource(BaseModel):
    """A base model that tasks may name."""

    object: Literal["model"] = "model"
    name: str
    revision: str = Field(description="sha256 over its safetensors files; tasks pin it")
    commit: str | None = Field(description="Of its repository on the hub; null: a folder of the nodes")
    license: str | None = Field(description="As the hub tells it")
    gated: bool = Field(description="Whether the hub gives it to accounts alone that accepted its terms")
    architecture: str
    parameters: int
    max_position: int = Field(description="Tokens of the longest sequence")
    created_at: datetime

    @classmethod
    def of(cls, model: models.BaseModel) -> "ModelResource":
        return cls.model_validate(model, from_attributes=True)


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
    dry_run: bool = Field(default=False, description="Tell all of it, and change nothing")


class HubFileResource(BaseModel):
    """A file that nodes fetch."""

    path: str
    bytes: int
    sha256: str


class GpuFitResource(BaseModel):
    """A type of GPU of the fleet, and in which precisions the base's weights fit it."""

    type: str
    memory_bytes: int = Field(description="Of the smallest GPU of the node of this type that has most")
    precisions: list[Precision]


class HubModelResource(BaseModel):
    """A base model of the hub, before any node has fetched it."""

    object: Literal["model"] = "model"
    name: str
    source: str
    revision: str = Field(description="sha256 over its safetensors files; tasks pin it")
    commit: str
    license: str | None
    gated: bool
    architecture: str
    parameters: int
    max_position: int
    bytes: int = Field(description="Of all files: what each node that trains on it downloads")
    files: list[HubFileResource]
    fits: list[GpuFitResource] = Field(description="Empty while no node is ready")
    dry_run: bool

    @classmethod
    def of(cls, found: HubModel, fits: Sequence[GpuFit], dry_run: bool) -> "HubModelResource":
        row = found.row
        return cls(
            name=row.name,
            source=row.source,
            revision=row.revision,
            commit=row.commit or "",
            license=row.license,
            gated=row.gated,
            architecture=row.architecture,
            parameters=row.parameters,
            max_position=row.max_position,
            bytes=found.bytes,
            files=[HubFileResource.model_validate(file, from_attributes=True) for file in found.files],
            fits=[GpuFitResource.model_validate(fit, from_attributes=True) for fit in fits],
            dry_run=dry_run,
        )


@router.get("/models", tags=["models"], operation_id="list_models", summary="List the base models that tasks may name")
def list_models(reader: Reader, db: Db) -> Page[ModelResource]:
    with db.begin() as session:
        allowed = select(models.BaseModel).where(models.BaseModel.enabled).order_by(models.BaseModel.name)
        return Page(data=[ModelResource.of(model) for model in session.scalars(allowed)], next_cursor=None)


@router.get(
    "/models/{name:path}", tags=["models"], operation_id="get_model", summary="Get a base model", responses=problems(404)
)
def get_model(name: str, reader: Reader, db: Db) -> ModelResource:
    with db.begin() as session:
        model = session.get(models.BaseModel, name)
        if model is None or not model.enabled:
            raise NotFound(f"There is no base model {shown(name)!r}; GET /v1/models lists what there is.")
        return ModelResource.of(model)


@router.post(
    "/models",
    tags=["models"],
    status_code=201,
    operation_id="add_model",
    summary="Allow a base model of the hub (admin)",
    description=(
        "Resolves the revision to a commit, checks that the model can be trained on and fits a GPU of the fleet, and says what "
        "a node will download. Nodes fetch it when a task needs it. Again for the same name: brings the entry up to date."
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
    if fits and not any(fit.precisions for fit in fits):
        raise _too_large(found, fits)
    for file in found.files:
        if (content := found.contents.get(file.path)) is not None:
            storage.put(BytesIO(content), file.sha256, file.bytes)
    with db.begin() as session:
        model_catalog.allow(session, found.row, found.files)
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
        allowed = ModelResource.of(model_catalog.allow(session, found))
        claim.store_answer(session, 201, allowed, {})
    return allowed


def _too_large(found: HubModel, fits: Sequence[GpuFit]) -> Exception:
    most = max(fits, key=lambda fit: fit.memory_bytes)
    return invalid_field(
        "source",
        "too_large",
        f"its {found.row.parameters / 1e9:.1f} billion parameters fit no GPU of the fleet in any precision; the roomiest, "
        f"{most.type}, has {most.memory_bytes / 2**30:.1f} GiB; name a smaller base, or add a node with larger GPUs",
    )
