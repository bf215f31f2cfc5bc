"""The API's representation of a file that comes from a named source, and of what a source would bring."""

from datetime import datetime
from typing import Any, Literal, cast

from pydantic import BaseModel, Field

from service.database.claimed_rows import last_error
from service.files.imports.sources import Found
from service.files.models import File, FileImport
from service.files.row_checks import Format
from service.http.problems import FieldError


class FileImportError(BaseModel):
    """Why the last attempt failed. While `status` is `importing`, another one follows."""

    code: str
    detail: str
    errors: list[FieldError] = Field(default=[], description="The first 100 mistakes by line and field, as of an upload")
    error_count: int | None = None


class ImportedFileResource(BaseModel):
    """A file that was named by its source. It can be trained on once it is `ready`."""

    object: Literal["file"] = "file"
    id: str
    name: str
    status: Literal["importing", "ready", "failed"]
    format: Format | None = Field(description="Null until it is ready, as are `bytes`, `rows` and `sha256`")
    bytes: int | None
    rows: int | None
    sha256: str | None = Field(description="Of the stored rows")
    created_at: datetime
    source: str = Field(description="Without a URL's query, which may hold a signature")
    path: str | None
    revision: str | None = Field(description="As it was asked for")
    commit: str | None = Field(description="Of the hub's repository: what is imported, whatever the revision does meanwhile")
    license: str | None = Field(description="As the hub tells it")
    gated: bool = Field(description="Whether the hub gives it to accounts alone that accepted its terms")
    received_bytes: int
    total_bytes: int | None = Field(description="As the source tells; null where it does not")
    attempts: int
    next_attempt_at: datetime | None = Field(description="Not before then; null while it is fetched, and at its end")
    error: FileImportError | None

    @classmethod
    def of(cls, row: FileImport, file: File | None = None) -> "ImportedFileResource":
        """file: of an import that is ready."""
        waits = row.status == "importing" and row.claim is None
        return cls(
            id=row.id,
            name=row.name,
            status=cast(Any, row.status),  # pydantic compares it
            format=Format(file.format) if file is not None else None,
            bytes=file.bytes if file is not None else None,
            rows=file.rows if file is not None else None,
            sha256=file.sha256 if file is not None else None,
            created_at=row.created_at,
            source=row.source,
            path=row.path,
            revision=row.revision,
            commit=row.commit,
            license=row.license,
            gated=row.gated,
            received_bytes=row.received_bytes,
            total_bytes=row.total_bytes,
            attempts=row.attempts,
            next_attempt_at=row.next_at if waits else None,
            error=last_error(row, FileImportError),
        )


class FoundFileResource(BaseModel):
    """What a source holds, before anything is imported (`dry_run`)."""

    object: Literal["found_file"] = "found_file"
    name: str
    source: str
    path: str | None
    revision: str | None
    commit: str | None
    license: str | None
    gated: bool
    bytes: int | None = Field(description="Null: the source does not tell")
    sha256: str | None = Field(description="Null: the source does not tell")
    dry_run: Literal[True] = True

    @classmethod
    def of(cls, found: Found, name: str) -> "FoundFileResource":
        return cls(
            name=name,
            source=found.shown,
            path=found.path,
            revision=found.revision,
            commit=found.commit,
            license=found.license,
            gated=found.gated,
            bytes=found.bytes,
            sha256=found.pins.sha256,
        )
