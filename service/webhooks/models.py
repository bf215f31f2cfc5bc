"""Tables of webhooks and of their deliveries (the outbox)."""

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from service.database.engine import At, Base, Id, Now


class Webhook(Base):
    __tablename__ = "webhooks"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    url: Mapped[str] = mapped_column(Text)
    format: Mapped[str] = mapped_column(String(16), default="standard", server_default="standard")  # a message_formats.Format
    description: Mapped[str | None] = mapped_column(String(128))
    events: Mapped[list[str]] = mapped_column(ARRAY(String(32)))
    secret: Mapped[bytes] = mapped_column(LargeBinary)  # encrypted
    secret_before: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted; also signs until `secret_before_until`
    secret_before_until: Mapped[At | None]
    disabled: Mapped[str | None] = mapped_column(String(16))  # reason: by_hand or gone
    created_at: Mapped[Now]


class Delivery(Base):
    """One message for one webhook. Every attempt signs and sends the same `payload` text."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(String(32))
    payload: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16), default="pending")  # pending, delivered or failed
    attempts: Mapped[int] = mapped_column(default=0)
    unrecorded: Mapped[int] = mapped_column(default=0, server_default="0")  # attempts in a row without an outcome
    next_at: Mapped[At]  # next attempt; during an attempt, the end of its visibility timeout
    last_status: Mapped[int | None]  # HTTP status
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[Now]
    delivered_at: Mapped[At | None]

    __table_args__ = (
        Index("ix_webhook_deliveries_due", "next_at", postgresql_where=text("status = 'pending'")),  # of the version before
        # in the order in which they are sent, those of failed attempts apart: these may have to wait
        Index(
            *("ix_webhook_deliveries_next", "webhook_id", text("(attempts > 0)"), "next_at", "id"),
            postgresql_where=text("status = 'pending'"),
        ),
        Index("ix_webhook_deliveries_webhook", "webhook_id", text("created_at DESC"), text("id DESC")),
    )
