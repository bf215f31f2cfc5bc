"""Delivers messages: takes due ones from their rows, signs, sends, and notes what came of it. At least once each.

Any number of couriers may run: a message that one has taken is hidden from the others for a while, and if its courier dies it
is tried again after that. No row is locked and no transaction open while a receiver takes its time.
"""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.http.outbound import Answer, Failed, Outbound, Refused
from service.secret_box import SecretBox, Unsealable
from service.webhooks.actions import give_up_waiting
from service.webhooks.models import Delivery, Webhook
from service.webhooks.signatures import headers

log = logging.getLogger(__name__)

_BATCH = 16
_HELD = timedelta(seconds=60)  # longer than any try lasts
# after each try that failed; 71.6 hours in all
WAITS = tuple(timedelta(seconds=s) for s in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 72_000))
GONE = 410  # the receiver wants nothing any more


@dataclass(frozen=True)
class DueDelivery:
    """One message on its way."""

    id: str
    url: str
    body: bytes
    secrets: tuple[str, ...]


class Courier:
    """`wake` returns at once; a thread delivers whatever is due."""

    def __init__(self, db: Database, outbound: Outbound, box: SecretBox) -> None:
        self._db, self._outbound, self._box = db, outbound, box
        self._woken = threading.Event()
        self._pool = ThreadPoolExecutor(_BATCH, thread_name_prefix="courier")
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Deliver what is due, from a thread of its own."""
        self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="courier", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while self._woken.wait():
            self._woken.clear()
            try:
                self.deliver_due()
            except SQLAlchemyError as error:
                log.error("messages are delivered later, the database does not answer: %s", error)

    def deliver_due(self) -> int:
        """Try everything that is due, once; how many there were."""
        done = 0
        while errands := self._take():
            list(self._pool.map(self._run, errands))
            done += len(errands)
        return done

    def _take(self) -> list[DueDelivery]:
        """Some due messages, hidden from other couriers."""
        with self._db.begin() as session:
            now = clock(session)
            due = select(Delivery, Webhook).join(Webhook, Webhook.id == Delivery.webhook_id)
            due = due.where(Delivery.status == "pending", Delivery.next_at <= now, Webhook.disabled.is_(None))
            locked = due.order_by(Delivery.next_at).limit(_BATCH).with_for_update(skip_locked=True, of=Delivery)
            errands = []
            for delivery, webhook in session.execute(locked):
                delivery.next_at = now + _HELD
                delivery.attempts += 1
                secrets = self._secrets(webhook, now)
                errands.append(DueDelivery(delivery.id, webhook.url, delivery.payload.encode(), secrets))
            return errands

    def _secrets(self, webhook: Webhook, now: datetime) -> tuple[str, ...]:
        sealed = [webhook.secret]
        if webhook.secret_before is not None and webhook.secret_before_until is not None and webhook.secret_before_until > now:
            sealed.append(webhook.secret_before)
        try:
            return tuple(self._box.open(one) for one in sealed)
        except Unsealable as error:
            log.error("webhook %s: %s", webhook.id, error)
            return ()

    def _run(self, errand: DueDelivery) -> None:
        status, error = None, None
        if not errand.secrets:
            error = "the webhook's secret cannot be read on our side; rotate it"
        else:
            try:
                status = self._post(errand).status
            except (Refused, Failed) as failure:
                error = str(failure)
        with self._db.begin() as session:
            _note(session, errand.id, status, error)

    def _post(self, errand: DueDelivery) -> Answer:
        signed = headers(errand.secrets, errand.id, int(time.time()), errand.body)
        return self._outbound.post(errand.url, errand.body, signed)


def _note(session: Session, delivery_id: str, status: int | None, error: str | None) -> None:
    """What came of a try."""
    delivery = session.get(Delivery, delivery_id, with_for_update=True)
    if delivery is None:
        return  # deleted with its webhook
    now = clock(session)
    delivery.last_status, delivery.last_error = status, error
    if status is not None and 200 <= status < 300:
        delivery.status, delivery.delivered_at = "delivered", now
    elif status == GONE:
        webhook = session.get_one(Webhook, delivery.webhook_id, with_for_update=True)
        webhook.disabled = "gone"
        delivery.status = "failed"
        give_up_waiting(session, webhook.id, "the receiver answered 410: it wants no more messages")
        log.info("webhook %s answered 410 and is disabled", webhook.id)
    elif delivery.attempts > len(WAITS):
        delivery.status = "failed"
    else:
        delivery.next_at = now + WAITS[delivery.attempts - 1]
