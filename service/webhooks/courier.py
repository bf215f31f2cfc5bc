"""Webhook courier: takes due messages from their table, signs and sends them, and records the results. At-least-once delivery.

Any number of couriers may run: taking a message hides it from the others for 60 s (a visibility timeout), after which another
courier retries it if its courier died; one whose couriers die again and again is failed (poison_rows.py). No transaction is
open during a POST. delivery_slots.py limits concurrent deliveries per tenant and webhook, so that no tenant's receivers delay
another's.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, select, text
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.http.outbound import Failed, Outbound, Refused
from service.messaging.claim_courier import ClaimCourier, Taken
from service.messaging.poison_rows import GIVEN_UP, MOST_UNRECORDED
from service.secret_box import SecretBox, Unsealable
from service.webhooks.actions import MAILTO, give_up_waiting
from service.webhooks.delivery_slots import OF_WEBHOOK, SLOTS, DeliverySlots, Due
from service.webhooks.mail import Mailer
from service.webhooks.message_formats import email, slack_body
from service.webhooks.models import Delivery, Webhook
from service.webhooks.signatures import USER_AGENT, headers

log = logging.getLogger(__name__)

_LOOKED_AT = 256  # due messages per query
_SLOW_SECONDS = 5.0  # an answer after this marks the webhook as slow
_HELD = timedelta(seconds=60)  # visibility timeout, longer than any attempt
# delay after each failed attempt; 71.6 hours in total
WAITS = tuple(timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 72_000))
GONE = 410  # the receiver wants no more messages

# The first due messages of each webhook, in round-robin order: the n-th of all before the next ones. A skip scan finds the
# webhooks with pending messages, and the same index has each one's first, those of failed attempts apart: the cost grows with
# these webhooks, not with their messages. (Postgres makes `attempts <= 0` of NOT, which is not in the index; and where all
# messages have failed, or none has, it overrates what IS FALSE and IS TRUE find by it, and reads the whole table.)
_COLUMNS = "SELECT id, tenant_id, webhook_id, next_at, attempts > 0 AS failed FROM webhook_deliveries"
_OF_WEBHOOK = "webhook_id = w.id AND status = 'pending' AND next_at <= :now"
_FIRST_DUE = text(
    f"""WITH RECURSIVE waiting (webhook_id) AS (
        SELECT min(webhook_id) FROM webhook_deliveries WHERE status = 'pending'
        UNION ALL
        SELECT (SELECT min(webhook_id) FROM webhook_deliveries WHERE status = 'pending' AND webhook_id > before.webhook_id)
        FROM waiting before WHERE before.webhook_id IS NOT NULL
    ), ranked AS (
        SELECT first.*, row_number() OVER (PARTITION BY first.webhook_id ORDER BY first.next_at, first.id) AS nth
        FROM waiting JOIN webhooks w ON w.id = waiting.webhook_id CROSS JOIN LATERAL (
            ({_COLUMNS} WHERE {_OF_WEBHOOK} AND (attempts > 0) < TRUE ORDER BY attempts > 0, next_at, id LIMIT :each)
            UNION ALL
            ({_COLUMNS} WHERE {_OF_WEBHOOK} AND (attempts > 0) >= TRUE AND NOT :no_slow
             ORDER BY attempts > 0, next_at, id LIMIT :each)
        ) first
        WHERE w.disabled IS NULL AND w.tenant_id <> ALL(:tenants) AND w.id <> ALL(:webhooks)
    )
    SELECT id, tenant_id, webhook_id, failed FROM ranked WHERE nth <= :each ORDER BY nth, failed, next_at LIMIT :most"""
)


@dataclass(frozen=True)
class DueDelivery:
    """One message to send, with its webhook's URL, format and secrets. Its repr is of a log line, which holds none of these.

    held_until: the end of its visibility timeout, by which the row tells this attempt from others.
    suspect: its last attempt has no outcome.
    """

    due: Due
    url: str = field(repr=False)
    format: str
    payload: str = field(repr=False)
    sealed: tuple[bytes, ...] = field(repr=False)  # secrets of the format `standard`
    held_until: datetime
    suspect: bool


class Courier(ClaimCourier[DueDelivery]):
    """Delivers due messages."""

    name, slots = "courier", SLOTS
    daemon = False  # a call that is cut has no outcome, so the end of the process waits for it, about 30 s at most

    def __init__(
        self, db: Database, outbound: Outbound, box: SecretBox, mailer: Mailer | None = None, public_url: str | None = None
    ) -> None:
        super().__init__()
        self._db, self._outbound, self._box = db, outbound, box
        self._mailer, self._public_url = mailer, public_url
        self._lock = threading.Lock()  # guards all below
        self._limits = DeliverySlots()
        self._suspect = False  # whether one is in flight: it is alone among its like

    def take(self, most: int) -> Taken[DueDelivery]:
        """Take due messages that get a slot, hiding them from other couriers."""
        given: dict[str, Due] = {}
        hidden = Taken[DueDelivery]([])
        try:
            with self._db.begin() as session:
                now = clock(session)
                wanted = self._candidates(session, now)
                with self._lock:
                    given = {one.id: one for one in self._limits.take(wanted, most)}
                found = self._hide(session, given, now)
            hidden = found  # and committed
        finally:
            with self._lock:
                self._suspect |= any(one.suspect for one in hidden.rows)
                for id in given.keys() - {one.due.id for one in hidden.rows}:  # another courier's, or no longer due
                    self._limits.leave(given[id])
        return hidden

    def work_off(self, claimed: DueDelivery) -> None:
        """Attempt one delivery."""
        began, status, error = time.monotonic(), None, None
        try:
            try:
                status = self._send(claimed)
            except (Refused, Failed) as failure:
                error = str(failure)
            except Unsealable as failure:
                log.error("webhook %s: %s", claimed.due.webhook, failure)
                error = "the webhook's secret cannot be read on our side; rotate it"
            with self._db.begin() as session:
                _note(session, claimed, status, error)
        finally:
            slow = time.monotonic() - began > _SLOW_SECONDS
            with self._lock:
                self._limits.give_back(claimed.due, slow)
                self._suspect &= not claimed.suspect

    def release(self, claimed: DueDelivery) -> None:
        """Nothing: its call ends in this process."""

    def _hide(self, session: Session, given: Mapping[str, Due], now: datetime) -> Taken[DueDelivery]:
        """Take the messages that no other courier has taken, and set their visibility timeout."""
        own = select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        own = own.where(Delivery.id.in_(given), _is_due(now)).with_for_update(skip_locked=True, of=Delivery)
        hidden, held_until, behind = list[DueDelivery](), now + _HELD, False
        with self._lock:
            suspects = int(self._suspect)
        for delivery, webhook in session.execute(own):
            if delivery.unrecorded >= MOST_UNRECORDED:
                delivery.status, delivery.last_status, delivery.last_error = "failed", None, GIVEN_UP
                log.error("message %s of webhook %s: %s", delivery.id, webhook.id, GIVEN_UP)
                behind = True
                continue
            suspect = delivery.unrecorded > 0
            if suspect and suspects:
                continue
            suspects += suspect
            delivery.next_at = held_until
            delivery.attempts += 1
            delivery.unrecorded += 1
            sealed = _sealed(webhook, now) if webhook.format == "standard" else ()
            due, payload = given[delivery.id], delivery.payload
            hidden.append(DueDelivery(due, webhook.url, webhook.format, payload, sealed, held_until, suspect))
        return Taken(hidden, seconds=0.0 if hidden or behind else None)  # others may be due behind them

    def _candidates(self, session: Session, now: datetime) -> list[Due]:
        """Due messages of webhooks that may get a slot, in round-robin order over the webhooks."""
        with self._lock:
            (tenants, webhooks), no_slow = self._limits.closed(), self._limits.no_slow
        closed = {"tenants": tenants, "webhooks": webhooks, "no_slow": no_slow}
        rows = session.execute(_FIRST_DUE, {"now": now, "each": OF_WEBHOOK, "most": _LOOKED_AT} | closed)
        return [Due(row.id, row.tenant_id, row.webhook_id, row.failed) for row in rows]

    def _send(self, one: DueDelivery) -> int:
        """The receiver's status. Raises Refused, Failed or Unsealable."""
        if one.format == "email":
            if self._mailer is None:
                raise Failed("no SMTP server is set (MOTET_SMTP_URL)")
            recipient = one.url.removeprefix(MAILTO)
            return self._mailer.send(email(one.payload, self._public_url, self._mailer.sender, recipient))
        if one.format == "slack":
            plain = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
            return self._outbound.post(one.url, slack_body(one.payload, self._public_url), plain).status
        body, secrets = one.payload.encode(), [self._box.open(secret) for secret in one.sealed]
        return self._outbound.post(one.url, body, headers(secrets, one.due.id, int(time.time()), body)).status


def _sealed(webhook: Webhook, now: datetime) -> tuple[bytes, ...]:
    """The secrets that sign now."""
    if webhook.secret_before is not None and webhook.secret_before_until is not None and webhook.secret_before_until > now:
        return webhook.secret, webhook.secret_before
    return (webhook.secret,)


def _is_due(now: datetime) -> ColumnElement[bool]:
    return and_(Delivery.status == "pending", Delivery.next_at <= now, Webhook.disabled.is_(None))


def _note(session: Session, one: DueDelivery, status: int | None, error: str | None) -> None:
    """Record an attempt's result and schedule the next one."""
    # before any of its messages, as where it is deleted: in another order two answers of 410 could wait for each other
    webhook = session.get(Webhook, one.due.webhook, with_for_update=True) if status == GONE else None
    delivery = session.get(Delivery, one.due.id, with_for_update=True)
    if delivery is None:
        return  # deleted with its webhook
    now = clock(session)
    newest = delivery.next_at == one.held_until  # else the message was replayed, or taken again, since this attempt began
    if newest:
        delivery.unrecorded = 0
    if newest or delivery.status == "pending":
        delivery.last_status, delivery.last_error = status, error
    if webhook is not None:
        webhook.disabled = "gone"
        if newest:
            delivery.status = "failed"
        give_up_waiting(session, webhook.id, "the receiver answered 410: it wants no more messages")
        log.info("webhook %s answered 410 and is disabled", webhook.id)
    elif not newest:
        pass  # what comes next is for the replay to say, or for the newer attempt
    elif status is not None and 200 <= status < 300:
        delivery.status, delivery.delivered_at = "delivered", now
    elif delivery.attempts > len(WAITS):
        delivery.status = "failed"
    else:
        delivery.next_at = now + WAITS[delivery.attempts - 1]
