"""The API's representation of an adapter: a PEFT folder of immutable files."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage
from service.adapters.models import Adapter


class AdapterResource(BaseModel):
    object: Literal["adapter"] = "adapter"
    id: str
    task_id: str
    job_id: str
    step: int = Field(description="The optimizer step it was taken after")
    val_loss: float = Field(description="Mean nats per completion token over the validation rows")
    bytes: int
    files: list[AdapterFile]
    lineage: Lineage
    created_at: datetime

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterResource":
        manifest = AdapterManifest.model_validate(adapter.manifest)
        return cls(
            id=adapter.id,
            task_id=adapter.task_id,
            job_id=adapter.job_id,
            step=adapter.step,
            val_loss=adapter.val_loss,
            bytes=adapter.bytes,
            files=manifest.files,
            lineage=manifest.lineage,
            created_at=adapter.created_at,
        )
