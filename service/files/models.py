"""The tables of files: immutable JSONL with one training example a row, stored under its sha256; and of those to come, imported
or uploaded in parts."""

from dataclasses import dataclass

from pydantic import TypeAdapter
from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from service.database.checked_json import ParsedJson, UnreadValue
from service.database.claimed_rows import TenantsRow
from service.database.engine import At, Base, Big, Id, Now


class File(Base):
    __tablename__ = "files"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(255))
    format: Mapped[str] = mapped_column(String(32))  # of row_checks.Format
    bytes: Mapped[Big]
    rows: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    prompt_bytes: Mapped[Big | None]  # of preferences' prompts, which training reads twice; null: of a version before it
    tools_line: Mapped[int | None]  # its first row with tools; null: none, or of a version before it
    created_at: Mapped[Now]
    expires_at: Mapped[At | None]  # afterwards it counts as deleted
    deleted_at: Mapped[At | None]

    __table_args__ = (Index("ix_files_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),)


@dataclass(frozen=True)
class Pins:
    """What a source said of a file's bytes, as far as it did. `etag` is a strong one."""

    sha256: str | None = None
    blob_id: str | None = None  # git's: sha1 over "blob <size>\\0" and the bytes
    etag: str | None = None


class FileImport(TenantsRow, Base):
    """A file that is fetched from a named source. Once it is `ready`, a File has the same id. `status`: importing, ready or
    failed. `pins`: what the bytes must be. `sealed`: the URL and the token."""

    __tablename__ = "file_imports"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(255))
    source: Mapped[str] = mapped_column(Text)  # without a query, which may hold a signature
    path: Mapped[str | None] = mapped_column(Text)  # in the hub's repository, and below of its commit
    revision: Mapped[str | None] = mapped_column(String(255))
    commit: Mapped[str | None] = mapped_column(String(40))
    license: Mapped[str | None] = mapped_column(String(128))
    gated: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    pins: Mapped[Pins | UnreadValue] = mapped_column(ParsedJson(TypeAdapter(Pins), "pins of the import (file_imports.pins)"))
    total_bytes: Mapped[Big | None]  # null: the source does not tell
    received_bytes: Mapped[Big] = mapped_column(default=0, server_default="0")
    reserved_bytes: Mapped[Big] = mapped_column(default=0, server_default="0")  # of the tenant's quota, while it is importing

    __table_args__ = (Index("ix_file_imports_open", "next_at", postgresql_where=text("status = 'importing'")),)


class ChunkedUpload(Base):
    """A file that is uploaded in parts, until `expires_at`. `received_bytes`: of all parts, some perhaps sent twice.
    `completed_part_ids`: those that became the file."""

    __tablename__ = "uploads"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(255))
    mime_type: Mapped[str] = mapped_column(String(255))
    bytes: Mapped[Big]  # that the file is to have
    status: Mapped[str] = mapped_column(String(16))  # pending, completed or cancelled
    received_bytes: Mapped[Big] = mapped_column(default=0, server_default="0")
    part_count: Mapped[int] = mapped_column(default=0, server_default="0")
    file_lasts_seconds: Mapped[int | None]
    file_id: Mapped[str | None] = mapped_column(String(40))
    completed_part_ids: Mapped[list[str] | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[Now]
    expires_at: Mapped[At]

    __table_args__ = (
        Index("ix_uploads_open", "tenant_id", postgresql_where=text("status = 'pending'")),
        Index("ix_uploads_expires_at", "expires_at"),
    )


class ChunkedUploadPart(Base):
    """An object of storage that nothing else refers to. It goes with its upload, and once that has ended."""

    __tablename__ = "upload_parts"

    id: Mapped[Id]
    upload_id: Mapped[str] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), index=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    bytes: Mapped[Big]
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Now]
