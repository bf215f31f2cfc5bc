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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.http.outbound import Failed, Outbound, Refused
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
    """One message to send, with its webhook's URL, format and secrets.

    held_until: the end of its visibility timeout, by which the row tells this attempt from others.
    suspect: its last attempt has no outcome.
    """

    due: Due
    url: str
    format: str
    payload: str
    sealed: tuple[bytes, ...]  # secrets of the format `standard`
    held_until: datetime
    suspect: bool


class Courier:
    """Delivers due messages in a background thread and a pool; `wake` returns at once."""

    def __init__(
        self, db: Database, outbound: Outbound, box: SecretBox, mailer: Mailer | None = None, public_url: str | None = None
    ) -> None:
        self._db, self._outbound, self._box = db, outbound, box
        self._mailer, self._public_url = mailer, public_url
        self._pool = ThreadPoolExecutor(SLOTS, thread_name_prefix="courier")
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards all below
        self._slots = DeliverySlots()
        self._suspect = False  # whether one is in flight: it is alone among its like
        self._stopping = False
        self._look = False  # since the last query a message may be due or a slot free

    def wake(self) -> None:
        """Start delivering due messages in the background thread."""
        self._look_again()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Take no more messages; returns at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self, seconds: float = 5.0) -> None:
        """Stop, and wait for those in flight. The end of the process waits for what is left, as long as a call may take."""
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._slots, timeout=seconds)

    def _look_again(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._look or self._stopping)
                if self._stopping:
                    return
            try:
                self.deliver_due()
            except SQLAlchemyError as error:
                log.error("messages are delivered later, the database does not answer: %s", error)

    def deliver_due(self) -> int:
        """Attempt every due message once, also those that become due meanwhile; returns the number of attempts."""
        done = 0
        self._look_again()
        while self._something_to_do():
            due_deliveries = self._take()
            for due_delivery in due_deliveries:
                self._pool.submit(self._run, due_delivery).add_done_callback(_show_unforeseen)
            if due_deliveries:
                self._look_again()
            done += len(due_deliveries)
        return done

    def _something_to_do(self) -> bool:
        """Wait until the table should be queried again; False once no delivery is in flight and nothing has changed."""
        with self._changed:
            self._changed.wait_for(lambda: self._look or self._stopping or not self._slots)
            due, self._look = self._look and not self._stopping, False
        return due

    def _take(self) -> list[DueDelivery]:
        """Take due messages that get a slot, hiding them from other couriers."""
        given: dict[str, Due] = {}
        due_deliveries: list[DueDelivery] = []
        try:
            with self._db.begin() as session:
                now = clock(session)
                wanted = self._candidates(session, now)
                with self._changed:
                    given = {one.id: one for one in self._slots.take(wanted)}
                due_deliveries = self._hide(session, given, now)
        except SQLAlchemyError:
            due_deliveries = []
            raise
        finally:
            with self._changed:
                self._suspect |= any(due_delivery.suspect for due_delivery in due_deliveries)
                for id in given.keys() - {
                    due_delivery.due.id for due_delivery in due_deliveries
                }:  # taken by another courier, or no longer due
                    self._slots.leave(given[id])
        return due_deliveries

    def _hide(self, session: Session, given: Mapping[str, Due], now: datetime) -> list[DueDelivery]:
        """Take the messages that no other courier has taken, and set their visibility timeout."""
        own = select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
        own = own.where(Delivery.id.in_(given), _is_due(now)).with_for_update(skip_locked=True, of=Delivery)
        due_deliveries = []
        held_until = now + _HELD
        with self._changed:
            suspects = int(self._suspect)
        for delivery, webhook in session.execute(own):
            if delivery.unrecorded >= MOST_UNRECORDED:
                delivery.status, delivery.last_status, delivery.last_error = "failed", None, GIVEN_UP
                log.error("message %s of webhook %s: %s", delivery.id, webhook.id, GIVEN_UP)
                self._look_again()  # others may be due behind it
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
            due_deliveries.append(DueDelivery(due, webhook.url, webhook.format, payload, sealed, held_until, suspect))
        return due_deliveries

    def _candidates(self, session: Session, now: datetime) -> list[Due]:
        """Due messages of webhooks that may get a slot, in round-robin order over the webhooks."""
        with self._changed:
            (tenants, webhooks), no_slow = self._slots.closed(), self._slots.no_slow
        closed = {"tenants": tenants, "webhooks": webhooks, "no_slow": no_slow}
        rows = session.execute(_FIRST_DUE, {"now": now, "each": OF_WEBHOOK, "most": _LOOKED_AT} | closed)
        return [Due(row.id, row.tenant_id, row.webhook_id, row.failed) for row in rows]

    def _run(self, due_delivery: DueDelivery) -> None:
        began, status, error = time.monotonic(), None, None
        try:
            try:
                status = self._send(due_delivery)
            except (Refused, Failed) as failure:
                error = str(failure)
            except Unsealable as failure:
                log.error("webhook %s: %s", due_delivery.due.webhook, failure)
                error = "the webhook's secret cannot be read on our side; rotate it"
            with self._db.begin() as session:
                _note(session, due_delivery, status, error)
        except SQLAlchemyError as failure:
            log.error("result of delivery %s could not be stored; it will be sent again: %s", due_delivery.due.id, failure)
        finally:
            slow = time.monotonic() - began > _SLOW_SECONDS
            with self._changed:
                self._slots.give_back(due_delivery.due, slow)
                self._suspect &= not due_delivery.suspect
            self._look_again()

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


def _show_unforeseen(attempt: "Future[None]") -> None:
    """Log what ended an attempt that nobody waits for. It has no outcome, so it counts as if it had ended its process."""
    if (error := attempt.exception()) is not None:
        log.critical("an attempt to deliver a message broke off", exc_info=error)


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
