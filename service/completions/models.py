"""Tables of completions: requests under way, and the pieces of their answers. What they used: usage/models.py.

A request lives as long as its client's connection; its row stays an hour, without the prompt, so that limits can be counted.
"""

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from contract.messages.completion_messages import CompletionPiece
from service.database.checked_json import ParsedJson, UnreadValue
from service.database.engine import At, Base, Big, Id, Json, Now

WAITING, RUNNING, ENDED = "waiting", "running", "ended"


class CompletionRequest(Base):
    """`asker_until`: until when the API process that holds the client's connection is taken to live; `claimed_until`: the same
    of the executor process `executor`, which renews it as it asks and sends."""

    __tablename__ = "completion_requests"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    base_model: Mapped[str] = mapped_column(String(128))
    base_revision: Mapped[str] = mapped_column(String(64))
    precision: Mapped[str] = mapped_column(String(16))
    adapter_id: Mapped[str | None] = mapped_column(String(40))
    job_id: Mapped[str | None] = mapped_column(String(40))  # whose newest checkpoint is asked
    dedicated: Mapped[bool]  # its adapter's task shares an executor with nobody
    work: Mapped[Json]  # a CompletionWork without its adapter; emptied at the end
    reserved_tokens: Mapped[Big]  # that it may generate at most
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[Now]
    asker_until: Mapped[At]
    deadline: Mapped[At]
    executor: Mapped[str | None] = mapped_column(String(64))
    placement_id: Mapped[str | None] = mapped_column(String(40))
    claimed_until: Mapped[At | None]
    # a refusals.Refusal while it waits, which reads it: no executor can be started for it
    refusal: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    attempts: Mapped[int] = mapped_column(server_default="0")
    last_piece: Mapped[int] = mapped_column(server_default="0")
    prompt_tokens: Mapped[Big] = mapped_column(server_default="0")
    completion_tokens: Mapped[Big] = mapped_column(server_default="0")
    billed: Mapped[bool] = mapped_column(server_default=text("false"))
    ended_at: Mapped[At | None]

    __table_args__ = (
        Index("ix_completion_requests_waiting", "base_revision", "created_at", postgresql_where=text("state = 'waiting'")),
        Index("ix_completion_requests_tenant_id", "tenant_id", "created_at"),
    )


class CompletionPieces(Base):
    """What an executor sent at once. Read once, by the API process that holds the connection."""

    __tablename__ = "completion_pieces"

    request_id: Mapped[str] = mapped_column(ForeignKey("completion_requests.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    content: Mapped[CompletionPiece | UnreadValue] = mapped_column(
        ParsedJson(TypeAdapter(CompletionPiece), "piece of the answer (completion_pieces.content)")
    )
