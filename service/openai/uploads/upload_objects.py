"""Translates uploads and their parts into OpenAI's objects. Times are Unix seconds."""

from typing import Literal

from pydantic import BaseModel

from service.files.models import ChunkedUpload, ChunkedUploadPart
from service.files.uploads.actions import UploadStatus
from service.openai.files.file_objects import FileObject
from service.openai.list_envelope import unix


class UploadObject(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: UploadStatus
    file: FileObject | None = None


class UploadPartObject(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


def upload_object(upload: ChunkedUpload, file: FileObject | None = None) -> UploadObject:
    return UploadObject(
        id=upload.id,
        bytes=upload.bytes,
        created_at=unix(upload.created_at),
        expires_at=unix(upload.expires_at),
        filename=upload.name,
        purpose="fine-tune",
        status=UploadStatus(upload.status),
        file=file,
    )


def part_object(part: ChunkedUploadPart) -> UploadPartObject:
    return UploadPartObject(id=part.id, created_at=unix(part.created_at), upload_id=part.upload_id)
