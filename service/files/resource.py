"""The API's representation of a file."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from service.files.models import File
from service.files.row_checks import Format


class FileResource(BaseModel):
    """An immutable data set."""

    object: Literal["file"] = "file"
    id: str
    name: str
    format: Format
    bytes: int
    rows: int
    sha256: str = Field(description="Of the bytes as they were uploaded")
    created_at: datetime

    @classmethod
    def of(cls, file: File) -> "FileResource":
        return cls(
            id=file.id,
            name=file.name,
            format=Format(file.format),
            bytes=file.bytes,
            rows=file.rows,
            sha256=file.sha256,
            created_at=file.created_at,
        )
