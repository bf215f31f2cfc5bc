"""A dead webhook delays nobody else's messages: limits by tenant and webhook, and a black hole beside a healthy receiver."""

import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, text, update

from service.database.engine import clock
from service.http.outbound import Outbound
from service.webhooks.courier import _FIRST_DUE, Courier
from service.webhooks.delivery_slots import OF_SLOW, OF_TENANT, OF_TENANTS_SLOW, OF_WEBHOOK, SLOTS, DeliverySlots, Due
from service.webhooks.factories import box_of
from service.webhooks.models import Delivery, Webhook
from tests.service.live_server import PATIENCE, until
from tests.service.webhooks import test_webhooks

receiver = test_webhooks.receiver


class BlackHole:
    """Takes connections and never answers, until it is let go."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/hook"

    def _accept(self) -> None:
        while True:
            try:
                self.taken.append(self._listener.accept()[0])
            except OSError:
                return

    def let_go(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self.taken:
            one.close()


@pytest.fixture
def black_hole() -> BlackHole:
    return BlackHole()


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), webhook_networks=(test_webhooks.HERE,))


@pytest.fixture
def courier(settings, database, black_hole) -> Iterator[Courier]:
    """Its calls last longer than a test. After each test nothing is on its way, and nothing waits."""
    made = Courier(database, Outbound(settings.webhook_networks, seconds=2 * PATIENCE), box_of(settings))
    yield made
    with database.begin() as session:
        session.execute(update(Webhook).values(disabled="by_hand"))
    black_hole.let_go()
    until(lambda: not made._in_flight)


def hook(tenant, url: str) -> str:
    return tenant.post("/v1/webhooks", json={"url": url, "events": ["task.cancelled"]}).json()["id"]


def messages(tenant, webhook_id: str, count: int) -> None:
    for _ in range(count):
        assert tenant.post(f"/v1/webhooks/{webhook_id}/test").status_code == 202


def test_a_black_hole_of_one_tenant_delays_no_other(new_tenant, black_hole, receiver, courier):
    """Its calls last longer than this test, and its messages came first and are more than there are slots."""
    victim, other = new_tenant(), new_tenant()
    dead = [hook(victim, black_hole.url) for _ in range(4)]
    for webhook_id in dead:
        messages(victim, webhook_id, SLOTS // 2)
    courier.wake()
    until(lambda: len(black_hole.taken) == OF_TENANT)
    well = hook(other, receiver.url)
    messages(other, well, 20)
    courier.wake()
    until(lambda: len(receiver.got) == 20)
    assert len(black_hole.taken) == OF_TENANT


def test_slow_webhooks_of_many_tenants_leave_seats_for_the_others(new_tenant, black_hole, receiver, courier):
    for _ in range(OF_SLOW + 3):
        tenant = new_tenant()
        webhook_id = hook(tenant, black_hole.url)
        messages(tenant, webhook_id, 3)
        courier._limits._slow.add(webhook_id)  # as after a try that timed out
    courier.wake()
    until(lambda: len(black_hole.taken) == OF_SLOW)
    other = new_tenant()
    messages(other, hook(other, receiver.url), 5)
    courier.wake()
    until(lambda: len(receiver.got) == 5)
    assert len(black_hole.taken) == OF_SLOW


@pytest.mark.parametrize("no_slow", [False, True])
def test_the_first_due_messages_are_found_without_reading_the_others(tenant, database, no_slow):
    hooks = [hook(tenant, "https://1.1.1.1/") for _ in range(5)]
    disabled, closed = hooks[3:]
    drawn = random.Random(7)
    with database.begin() as session:
        session.get_one(Webhook, disabled).disabled = "by_hand"
        now = clock(session)
        made = []
        for n in range(2000):
            due = now + timedelta(seconds=drawn.randrange(-60, 20))  # many at the same moment
            made.append(
                Delivery(
                    id=f"msg_{no_slow:d}{drawn.randrange(10**9):09}{n:04}",
                    tenant_id=tenant.tenant_id,
                    webhook_id=hooks[n % len(hooks)],
                    type="webhook.test",
                    payload="{}",
                    status="delivered" if n % 11 == 0 else "pending",
                    attempts=drawn.randrange(2),
                    next_at=due,
                )
            )
        session.add_all(made)
    with database.begin() as session:
        session.execute(text("ANALYZE webhook_deliveries"))
    given = {"now": now, "each": OF_WEBHOOK, "most": 10, "tenants": [], "webhooks": [closed], "no_slow": no_slow}
    with database.begin() as session:
        found = [row.id for row in session.execute(_FIRST_DUE, given)]
        waiting = session.scalar(text("SELECT count(DISTINCT webhook_id) FROM webhook_deliveries WHERE status = 'pending'"))
        ((plan,),) = session.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {_FIRST_DUE.text}"), given)
        session.execute(update(Delivery).where(Delivery.webhook_id.in_(hooks)).values(status="failed"))
    first = []
    for webhook_id in hooks[:3]:
        own = [one for one in made if (one.webhook_id, one.status) == (webhook_id, "pending") and one.next_at <= now]
        own = sorted((one for one in own if not (no_slow and one.attempts)), key=lambda one: (one.next_at, one.id))
        first += [(nth, one.attempts > 0, one.next_at, one.id) for nth, one in enumerate(own[:OF_WEBHOOK])]
    assert [at[:3] for at in sorted(first)[:10]] == [at[:3] for at in sorted(at for at in first if at[3] in found)]
    assert rows_read(plan[0]["Plan"]) <= 2 * OF_WEBHOOK * len(hooks) + 2 * waiting


@pytest.mark.parametrize("attempts", [0, 1])
def test_messages_that_have_all_failed_or_none_yet_are_not_all_read(tenant, database, attempts):
    webhook_id = hook(tenant, "https://1.1.1.1/")
    said = {"tenant_id": tenant.tenant_id, "webhook_id": webhook_id, "type": "webhook.test", "payload": "{}"}
    with database.begin() as session:
        session.execute(delete(Delivery))  # no others in the statistics
        now = clock(session)
        session.add_all(Delivery(id=f"msg_{n:04}", attempts=attempts, next_at=now, **said) for n in range(4000))
    with database.begin() as session:
        session.execute(text("ANALYZE webhook_deliveries"))
    given = {"now": now, "each": OF_WEBHOOK, "most": 10, "tenants": [], "webhooks": [], "no_slow": False}
    with database.begin() as session:
        found = [row.id for row in session.execute(_FIRST_DUE, given)]
        ((plan,),) = session.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {_FIRST_DUE.text}"), given)
        session.execute(delete(Delivery))
    assert found == [f"msg_{n:04}" for n in range(OF_WEBHOOK)]
    assert rows_read(plan[0]["Plan"]) <= 2 * OF_WEBHOOK + 2


def rows_read(node: dict[str, Any]) -> float:
    """Rows that the scans of deliveries gave or dropped."""
    own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    counted = own if node.get("Relation Name") == "webhook_deliveries" else 0
    return counted + sum(map(rows_read, node.get("Plans", ())))


@hypothesis.settings(max_examples=200, deadline=None)
@given(st.data())
def test_limits_hold_and_whoever_answers_is_served(data: st.DataObject) -> None:
    slots, number, on_way = DeliverySlots(), 0, list[Due]()
    slow = {"dead0", "dead1", *(f"d{n}" for n in range(12))}
    for _ in range(data.draw(st.integers(1, 12))):
        asked = []
        for _ in range(data.draw(st.integers(0, 40))):
            tenant = data.draw(st.sampled_from(["a", "b", "c", *(f"t{n}" for n in range(12))]))
            webhook = f"d{tenant[1:]}" if tenant[1:] else data.draw(st.sampled_from(["dead0", "dead1", f"{tenant}-well"]))
            number += 1
            asked.append(Due(str(number), tenant, webhook))
        on_way += slots.take(asked, SLOTS - len(slots))
        assert len(on_way) == len(slots) <= SLOTS
        assert max(Counter(one.tenant for one in on_way).values(), default=0) <= OF_TENANT
        assert max(Counter(one.webhook for one in on_way).values(), default=0) <= OF_WEBHOOK
        for one in data.draw(st.permutations(on_way))[: data.draw(st.integers(0, len(on_way)))]:
            on_way.remove(one)
            slots.give_back(one, slow=one.webhook in slow)
    for one in on_way:
        slots.give_back(one, slow=one.webhook in slow)
    crowd = [Due(f"x{n}-{m}", f"t{n}", f"d{n}", failed=True) for n in range(12) for m in range(SLOTS)]
    held = slots.take(crowd, SLOTS)
    assert len(held) == OF_SLOW
    assert slots.take([Due("last", "new", "well")], SLOTS), "a webhook that answers finds a slot"


def test_slow_webhooks_of_one_tenant_leave_slots_for_what_others_try_again() -> None:
    slots = DeliverySlots()
    held = slots.take((Due(f"x{n}", "t", f"d{n}", failed=True) for n in range(OF_SLOW)), SLOTS)
    assert len(held) == OF_TENANTS_SLOW
    assert slots.take([Due("again", "other", "well", failed=True)], SLOTS)
    slots.give_back(held[0], slow=True)
    assert slots.take([Due("next", "t", "d0")], SLOTS), "a slot that is free is the tenant's again"


def test_a_message_is_never_on_its_way_twice() -> None:
    slots, one = DeliverySlots(), Due("m", "t", "w")
    assert slots.take([one, one], SLOTS) == [one]
    slots.leave(one)
    assert slots.take([one], SLOTS) == [one]
