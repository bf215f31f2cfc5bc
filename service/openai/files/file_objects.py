"""Translates files into OpenAI's objects. Times are Unix seconds."""

from typing import Literal

from pydantic import BaseModel

from service.files.models import File
from service.http.openai_ids import OpenAiIds
from service.http.problems import invalid_field
from service.openai.list_envelope import unix

SOONEST_EXPIRY, LATEST_EXPIRY = 3600, 2592000  # seconds; OpenAI's own bounds of expires_after


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def require_fine_tune(purpose: str) -> None:
    """Raise Invalid for any other purpose of a file."""
    if purpose != "fine-tune":
        raise invalid_field("purpose", "invalid_purpose", f"must be 'fine-tune', got {purpose!r}")


def file_object(file: File, ids: OpenAiIds) -> FileObject:
    return FileObject(
        id=ids.of(file.id),
        bytes=file.bytes,
        created_at=unix(file.created_at),
        expires_at=unix(file.expires_at) if file.expires_at else None,
        filename=file.name,
        purpose="fine-tune",
    )
