"""The API's representation of a merged model: a folder of immutable files that transformers and vLLM load."""

from datetime import datetime
from typing import Literal, Self, cast

from pydantic import BaseModel, Field

from contract.messages.adapter_manifest import AdapterFile
from service.merges.models import FAILED, MergedModel

Status = Literal["queued", "running", "ready", "failed"]


class MergedModelResource(BaseModel):
    object: Literal["merged_model"] = "merged_model"
    id: str
    adapter_id: str
    base_model: str
    base_revision: str
    status: Status = Field(description="queued: no node has it yet. running: a node merges it. ready and failed are final")
    files: list[AdapterFile] = Field(description="That are stored; all of them once it is ready")
    bytes: int = Field(description="Of its files; before it is ready, of what they are expected to be. Counts as stored bytes")
    max_shard_bytes: int
    waits_for: str | None = Field(description="Why no node has it, or what its node waits for")
    error: str | None = Field(description="Why it failed, or why the last node did not finish it")
    created_at: datetime
    ended_at: datetime | None
    expires_at: datetime | None = Field(description="When its files are deleted, unless it is deleted before")

    @classmethod
    def of(cls, merged: MergedModel) -> Self:
        return cls(
            id=merged.id,
            adapter_id=merged.adapter_id,
            base_model=merged.base_model,
            base_revision=merged.base_revision,
            status=cast(Status, merged.status),
            files=[] if merged.status == FAILED else [AdapterFile.model_validate(file) for file in merged.files],
            bytes=merged.bytes,
            max_shard_bytes=merged.max_shard_bytes,
            waits_for=merged.waits_for,
            error=merged.error,
            created_at=merged.created_at,
            ended_at=merged.ended_at,
            expires_at=merged.expires_at,
        )
