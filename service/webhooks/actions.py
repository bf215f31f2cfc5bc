"""Webhook actions: create, change, rotate, test, replay. Secrets are stored encrypted. Knows no HTTP."""

import re
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session

from service.database.engine import after_commit, clock, new_id
from service.http.outbound import NotPublic, Outbound, Refused, parse_url
from service.http.problems import Invalid, invalid_field
from service.messaging.queue import Queue, QueueJob
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, missing, scoped
from service.webhooks.message_formats import Format
from service.webhooks.models import Delivery, Webhook
from service.webhooks.signatures import new_secret
from service.webhooks.webhook_messages import EventType, enqueue_message

MOST = 50  # webhooks per tenant
MAILTO = "mailto:"
_ADDRESS = re.compile(r"mailto:[A-Za-z0-9._%+-]{1,64}@(?=.{1,255}\Z)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_BOTH_SIGN = timedelta(hours=24)  # after a rotation, old and new secret both sign


class TooManyWebhooks(Invalid):
    code, title = "too_many_webhooks", "The tenant has as many webhooks as it may"


def create(
    session: Session,
    box: SecretBox,
    principal: Principal,
    url: str,
    events: Sequence[EventType],
    description: str | None,
    format: Format = "standard",
) -> tuple[Webhook, str]:
    """Create a webhook; returns it and its secret, which the API shows only once. The caller has checked the URL. Raises
    TooManyWebhooks."""
    count = session.scalar(scoped(select(func.count(Webhook.id)), Webhook, principal)) or 0
    if count >= MOST:
        raise TooManyWebhooks([], f"There are {count} webhooks, the limit is {MOST}; delete one.")
    secret = new_secret()
    webhook = Webhook(
        id=new_id("webhook"),
        tenant_id=principal.tenant_id,
        url=url,
        format=format,
        description=description,
        events=list(dict.fromkeys(events)),
        secret=box.seal(secret),
    )
    session.add(webhook)
    session.flush()
    session.refresh(webhook)
    return webhook, secret


def form_mistake(url: str, format: str) -> tuple[str, str] | None:
    """The code and the sentence for a URL that no webhook of this format can have, whatever the operator has set; else None."""
    if format == "email":
        wrong = "must be mailto: and one address, such as mailto:team@example.com"
        return ("address_wrong", wrong) if _ADDRESS.fullmatch(url) is None else None
    try:
        parse_url(url)
    except Refused as refused:
        return "url_refused", str(refused)
    return None


def check_url(outbound: Outbound, url: str, format: str, mail_is_set_up: bool) -> None:
    """Raise Invalid for a URL that is not of the format or that the SSRF guard refuses, and for e-mail where no server is set.
    Resolves the name, so call it outside a transaction."""
    if (wrong := form_mistake(url, format)) is not None:
        raise invalid_field("url", *wrong)
    if format == "email":
        if not mail_is_set_up:
            raise invalid_field("format", "email_not_set_up", "needs an SMTP server; an operator sets MOTET_SMTP_URL")
        return
    try:
        outbound.check(url)
    except Refused as refused:
        way = "; an operator allows a private network in MOTET_WEBHOOK_NETWORKS" if isinstance(refused, NotPublic) else ""
        raise invalid_field("url", "url_refused", f"{refused}{way}") from None


def find_webhook(session: Session, principal: Principal, id: str, *, lock: bool = False) -> Webhook:
    return find(session, Webhook, id, principal, "webhook", lock=lock)


def rotate(session: Session, box: SecretBox, webhook: Webhook) -> str:
    """Create a new secret. Messages are signed with both for 24 hours, so that the receiver can switch without a gap."""
    secret = new_secret()
    webhook.secret_before, webhook.secret_before_until = webhook.secret, clock(session) + _BOTH_SIGN
    webhook.secret = box.seal(secret)
    return secret


def set_enabled(webhook: Webhook, enabled: bool) -> None:
    """Enable or disable the webhook. While disabled it gets no new messages, and pending ones stay pending."""
    webhook.disabled = None if enabled else webhook.disabled or "by_hand"


def deliveries_of(principal: Principal, webhook_id: str) -> Select[Delivery]:
    return scoped(select(Delivery).where(Delivery.webhook_id == webhook_id), Delivery, principal)


def test(session: Session, queue: Queue, webhook: Webhook) -> Delivery:
    """Send a test message."""
    made = enqueue_message(session, webhook, EventType.TEST, {"id": webhook.id, "webhook_id": webhook.id}, clock(session))
    session.flush()
    after_commit(session, lambda: queue.wake(QueueJob.DELIVER))
    return made


def replay(session: Session, queue: Queue, principal: Principal, webhook_id: str, delivery_id: str) -> Delivery:
    """Send a message again under its id, whatever its status, with all attempts again. Raises NotFound."""
    delivery = session.scalar(deliveries_of(principal, webhook_id).where(Delivery.id == delivery_id).with_for_update())
    if delivery is None:
        raise missing("delivery", delivery_id)
    delivery.status, delivery.attempts, delivery.next_at = "pending", 0, clock(session)
    delivery.delivered_at, delivery.unrecorded = None, 0
    after_commit(session, lambda: queue.wake(QueueJob.DELIVER))
    return delivery


def give_up_waiting(session: Session, webhook_id: str, why: str) -> None:
    """Mark all the webhook's pending messages as failed."""
    waiting = update(Delivery).where(Delivery.webhook_id == webhook_id, Delivery.status == "pending")
    session.execute(waiting.values(status="failed", last_error=why))
