"""The API's representation of a merged model: a folder of immutable files that transformers and vLLM load."""

from datetime import datetime
from typing import Literal, Self, cast

from pydantic import BaseModel, Field

from contract.messages.adapter_manifest import AdapterFile
from service.database.checked_json import UnreadValue, readable
from service.http.problems import FieldError
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
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")

    @classmethod
    def of(cls, merged: MergedModel) -> Self:
        stored = {"adapter_files": merged.adapter_files, "files": merged.files}
        unread = {name: value for name, value in stored.items() if isinstance(value, UnreadValue)}
        return cls(
            id=merged.id,
            adapter_id=merged.adapter_id,
            base_model=merged.base_model,
            base_revision=merged.base_revision,
            status=cast(Status, merged.status),
            files=[] if merged.status == FAILED else readable(merged.files) or [],
            bytes=merged.bytes,
            max_shard_bytes=merged.max_shard_bytes,
            waits_for=merged.waits_for,
            error=merged.error,
            created_at=merged.created_at,
            ended_at=merged.ended_at,
            expires_at=merged.expires_at,
            problems=[_problem(name, value.why) for name, value in unread.items()] or None,
        )


def _problem(name: str, why: str) -> FieldError:
    said = f"{why}. An operator can write it anew in the database; or delete the merged model, and merge the adapter again."
    return FieldError(field=name, code="unreadable", message=said)
