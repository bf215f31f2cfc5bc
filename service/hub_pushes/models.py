"""The table of pushes to the hub: from the request to the commit. It keeps what it needs of an adapter or a merged model."""

from pydantic import TypeAdapter
from sqlalchemy import ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from contract.messages.adapter_manifest import AdapterFile
from service.database.checked_json import ParsedJson, UnreadValue
from service.database.claimed_rows import TenantsRow
from service.database.engine import Base, Big

OPEN, SUCCEEDED, FAILED = "open", "succeeded", "failed"


class HubPush(TenantsRow, Base):
    """`sealed`: the token. `committing`: a commit onto `parent` may have been sent, so its result is looked for before another
    one is."""

    __tablename__ = "hub_pushes"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    adapter_id: Mapped[str | None] = mapped_column(String(40))
    merged_model_id: Mapped[str | None] = mapped_column(String(40))
    endpoint: Mapped[str] = mapped_column(Text)  # of the hub that the token is for
    repository: Mapped[str] = mapped_column(String(200))
    revision: Mapped[str] = mapped_column(String(255))  # a branch
    private: Mapped[bool]
    message: Mapped[str] = mapped_column(Text)
    files: Mapped[list[AdapterFile] | UnreadValue] = mapped_column(
        ParsedJson(TypeAdapter(list[AdapterFile]), "files of the push (hub_pushes.files)")
    )  # as they are stored
    bytes: Mapped[Big]  # of the files,
    sent_bytes: Mapped[Big] = mapped_column(default=0, server_default="0")  # of which the hub has so many
    parent: Mapped[str | None] = mapped_column(String(40))
    committing: Mapped[bool] = mapped_column(default=False, server_default=text("false"))
    commit: Mapped[str | None] = mapped_column(String(40))

    __table_args__ = (
        Index("ix_hub_pushes_tenant_id_created", "tenant_id", text("created_at DESC"), text("id DESC")),
        Index("ix_hub_pushes_open", "next_at", postgresql_where=text("status = 'open'")),
    )
