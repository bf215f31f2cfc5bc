"""The table of merged models: from the request to the files, which storage keeps until the model expires or is deleted."""

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from contract.messages.adapter_manifest import AdapterFile
from service.database.checked_json import CheckedJson, ParsedJson, UnreadDict, UnreadValue
from service.database.engine import At, Base, Big, Id, Now

QUEUED, RUNNING, READY, FAILED = "queued", "running", "ready", "failed"
OPEN = (QUEUED, RUNNING)
_FILES, _LINEAGE = TypeAdapter(list[AdapterFile]), TypeAdapter(dict[str, Any])


class MergedModel(Base):
    """A node merges it under a lease and a fence, as placements are run. It keeps what it needs of the adapter, which may be
    deleted meanwhile."""

    __tablename__ = "merged_models"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    adapter_id: Mapped[str] = mapped_column(String(40))
    adapter_files: Mapped[list[AdapterFile] | UnreadValue] = mapped_column(
        ParsedJson(_FILES, "files of its adapter (merged_models.adapter_files)")
    )
    lineage: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_LINEAGE, UnreadDict))  # of the adapter's manifest
    base_model: Mapped[str] = mapped_column(String(128))
    base_revision: Mapped[str] = mapped_column(String(64))
    max_shard_bytes: Mapped[Big]
    status: Mapped[str] = mapped_column(String(16), default=QUEUED)
    files: Mapped[list[AdapterFile] | UnreadValue] = mapped_column(
        ParsedJson(_FILES, "files of the merged model (merged_models.files)", keeps_newer=True), default=list
    )  # as they are stored; each report writes them anew
    bytes: Mapped[Big]  # counts towards the stored-bytes quota: as estimated until it is ready, 0 once it failed
    node_id: Mapped[str | None] = mapped_column(String(40))
    fence: Mapped[Big] = mapped_column(default=0)
    lease_until: Mapped[At | None]
    acknowledged_at: Mapped[At | None]  # when its node first said that it merges it, under this fence
    attempts: Mapped[int] = mapped_column(default=0)  # that ended since a file was last stored
    next_at: Mapped[Now]  # no node gets it before then
    waits_for: Mapped[str | None] = mapped_column(Text)  # why no node has it, or what its node waits for
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[Now]
    ended_at: Mapped[At | None]
    expires_at: Mapped[At | None]
    deleted_at: Mapped[At | None]

    __table_args__ = (
        Index("ix_merged_models_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_merged_models_open", "next_at", postgresql_where=text("status IN ('queued', 'running')")),
        Index("ix_merged_models_node_ended", "node_id", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    )
