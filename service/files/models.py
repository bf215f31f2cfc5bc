"""The files table: immutable JSONL with one training example a row, stored under its sha256."""

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Big, Id, Now


class File(Base):
    __tablename__ = "files"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(255))
    format: Mapped[str] = mapped_column(String(32))  # chat or completion
    bytes: Mapped[Big]
    rows: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Now]
    expires_at: Mapped[At | None]  # afterwards it counts as deleted
    deleted_at: Mapped[At | None]
