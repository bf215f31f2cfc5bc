"""The API's representation of an adapter: a PEFT folder of immutable files."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from contract.compatibility.lenient_documents import unread_fields
from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage, UploadedManifest
from contract.messages.peft_settings import PeftSettings
from contract.wording.step_words import listed
from service.adapters.models import Adapter
from service.database.checked_json import UnreadValue, readable
from service.http.problems import FieldError


class AdapterResource(BaseModel):
    object: Literal["adapter"] = "adapter"
    id: str
    name: str | None = Field(default=None, description="Of an uploaded one, as its uploader calls it")
    base_model: str
    task_id: str | None = Field(description="The task that made it; null if it was uploaded, as are the fields of its training")
    job_id: str | None
    step: int | None = Field(description="The optimizer step after which its job's own validation loss was lowest")
    averaged_steps: list[int] = Field(description="The steps whose weights it is the mean of; none: it has those of `step`")
    val_loss: float | None = Field(description="Mean nats per completion token over the validation rows")
    bytes: int
    files: list[AdapterFile]
    lineage: Lineage | None
    settings: PeftSettings | None = Field(default=None, description="Of an uploaded one; the others' are in their lineage")
    created_at: datetime
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")

    @classmethod
    def of(cls, adapter: Adapter) -> "AdapterResource":
        manifest, problems = readable(adapter.manifest), None
        if isinstance(adapter.manifest, UnreadValue):
            problems = [FieldError(field="manifest", code="unreadable", message=_shown_without(adapter.manifest.why))]
        elif isinstance(manifest, AdapterManifest) and (unread := unread_fields(manifest.lineage.config)):
            why = f"the {listed(unread)} in the lineage.config of the stored adapters.manifest cannot be read"
            problems = [FieldError(field="lineage.config", code="unreadable", message=_shown_without(why))]
        return cls(
            id=adapter.id,
            name=adapter.name,
            base_model=manifest.lineage.base_model if manifest is not None else "",
            task_id=adapter.task_id,
            job_id=adapter.job_id,
            step=adapter.step,
            averaged_steps=list(manifest.averaged_steps) if isinstance(manifest, AdapterManifest) else [],
            val_loss=adapter.val_loss,
            bytes=adapter.bytes,
            files=manifest.files if manifest is not None else [],
            lineage=manifest.lineage if isinstance(manifest, AdapterManifest) else None,
            settings=manifest.settings if isinstance(manifest, UploadedManifest) else None,
            created_at=adapter.created_at,
            problems=problems,
        )


def _shown_without(why: str) -> str:
    told = f"{why[:1].upper()}{why[1:]}; the adapter is shown without it."
    return f"{told} An operator can write it anew in the database; or delete the adapter."
