"""The API's representation of base models: allowed, found on the hub, and how far their files are in storage."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.task_spec import Precision
from service.database.claimed_rows import last_error
from service.files.imports.resource import FileImportError
from service.fleet import models
from service.fleet.base_models.gpu_fit import GpuFit
from service.fleet.base_models.hub_models import HubModel


class BaseCopyResource(BaseModel):
    """A base's files in storage. Nodes fetch from there once they are `stored`, and until then, or if it `failed`, from the
    hub."""

    status: Literal["copying", "stored", "failed"]
    received_bytes: int
    total_bytes: int
    attempts: int
    next_attempt_at: datetime | None = Field(description="Not before then; null while it is copied, and at its end")
    error: FileImportError | None = Field(description="Of the last attempt; while it is `copying`, another one follows")

    @classmethod
    def of(cls, session: Session, name: str) -> "BaseCopyResource | None":
        row = session.get(models.BaseCopy, name)
        if row is None:
            return None
        of_base = select(func.sum(models.BaseModelFile.bytes)).where(models.BaseModelFile.base_model == name)
        total = int(session.scalar(of_base) or 0)
        return cls(
            status=cast(Any, row.status),  # pydantic compares it
            received_bytes=total if row.status == "stored" else row.received_bytes,
            total_bytes=total,
            attempts=row.attempts,
            next_attempt_at=row.next_at if row.status == "copying" and row.claim is None else None,
            error=last_error(row, FileImportError),
        )


class ModelResource(BaseModel):
    """A base model that tasks may name."""

    object: Literal["model"] = "model"
    name: str
    revision: str = Field(description="sha256 over its safetensors files; tasks pin it")
    commit: str | None = Field(description="Of its repository on the hub; null: in no repository")
    license: str | None = Field(description="As the hub tells it")
    gated: bool = Field(description="Whether the hub gives it to accounts alone that accepted its terms")
    architecture: str
    parameters: int
    max_position: int = Field(description="Tokens of the longest sequence")
    created_at: datetime
    storage: BaseCopyResource | None = Field(
        description="Its files in storage; null: nodes fetch it from the hub, or have it in a folder"
    )

    @classmethod
    def of(cls, session: Session, model: models.BaseModel) -> "ModelResource":
        said = {name: getattr(model, name) for name in cls.model_fields if name not in ("object", "storage")}
        return cls(**said, storage=BaseCopyResource.of(session, model.name))


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
    sharded: dict[Precision, int] = Field(
        description="Precisions in which it fits no single GPU: how many GPUs of a node share it, at least (`gpus` of a task)"
    )


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
    storage: BaseCopyResource | None = Field(description="Its files in storage; null: nodes fetch them from the hub")
    dry_run: bool

    @classmethod
    def of(cls, found: HubModel, fits: Sequence[GpuFit], dry_run: bool) -> "HubModelResource":
        """As it is told before it is allowed."""
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
            storage=None,
            dry_run=dry_run,
        )
