"""A message whose attempts end their process is failed in words after three of them; the others go out."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select, update

from service.http.outbound import Outbound
from service.messaging.poison_rows import GIVEN_UP, MOST_UNRECORDED
from service.webhooks.courier import Courier
from service.webhooks.factories import box_of
from service.webhooks.models import Delivery, Webhook
from tests.service.live_server import PATIENCE, until
from tests.service.webhooks import test_webhook_fairness, test_webhooks
from tests.service.webhooks.receiver import Receiver, ReceiverHandler
from tests.service.webhooks.serving import serving
from tests.service.webhooks.test_webhook_fairness import hook, messages

settings = test_webhooks.settings
receiver, black_hole = test_webhooks.receiver, test_webhook_fairness.black_hole

_COURIER = """
from service.dependencies import Dependencies
from service.settings import Settings
from service.webhooks.factories import courier_of
settings = Settings.load()
courier_of(settings, Dependencies.of(settings).db).work_off_due()
"""


class Deadly(Receiver):
    """Whoever posts to /deadly is killed, once all others are in flight (`beside`), which wait for that; later none waits."""

    victim: subprocess.Popen[bytes]

    def __init__(self, others: int) -> None:
        super().__init__()
        self.RequestHandlerClass = _Deadly
        self.beside, self.killed = threading.Barrier(others + 1), threading.Event()


class _Deadly(ReceiverHandler):
    server: Deadly

    def do_POST(self) -> None:
        if not self.server.killed.is_set():
            self.server.beside.wait(PATIENCE)
        if self.path == "/deadly":
            self.server.victim.kill()
            self.server.killed.set()
            return
        self.server.killed.wait(PATIENCE)
        super().do_POST()


@pytest.fixture(autouse=True)
def nothing_waits(database) -> Iterator[None]:
    """After each test."""
    yield
    with database.begin() as session:
        session.execute(update(Webhook).values(disabled="by_hand"))


@pytest.fixture
def deadly() -> Iterator[Deadly]:
    with serving(Deadly(others=6)) as made:
        yield made


@pytest.fixture
def ended(settings, environment_of, deadly):
    """Run a courier in a process of its own until nothing is due or it dies; how it ended."""

    def act() -> int:
        environment = environment_of(settings)
        process = deadly.victim = subprocess.Popen([sys.executable, "-c", _COURIER], env=environment)
        try:
            return process.wait(2 * PATIENCE)
        finally:
            process.kill()
            process.wait()

    return act


@pytest.fixture
def due(database):
    """Let the time come at which messages are sent again."""

    def act() -> None:
        with database.begin() as session:
            waiting = update(Delivery).where(Delivery.status == "pending")
            session.execute(waiting.values(next_at=func.clock_timestamp()))

    return act


def shown(tenant, webhook_id):
    return [
        (one["status"], one["attempts"], one["last_error"])
        for one in tenant.get(f"/v1/webhooks/{webhook_id}/deliveries").json()["data"]
    ]


def test_a_message_that_ends_its_process_is_failed_and_the_others_go_out(new_tenant, deadly, ended, due, database):
    """Those that were in flight beside it are not taken for such ones."""
    tenants = [new_tenant() for _ in range(3)]
    poison = hook(tenants[0], deadly.url.replace("/hook", "/deadly"))
    messages(tenants[0], poison, 1)
    beside = [hook(tenant, deadly.url) for tenant in tenants]
    for tenant, webhook_id in zip(tenants, beside, strict=True):
        messages(tenant, webhook_id, 2)
    deaths = 0
    while ended() == -signal.SIGKILL:
        deaths += 1
        assert deaths <= MOST_UNRECORDED
        due()
    assert deaths == MOST_UNRECORDED
    assert shown(tenants[0], poison) == [("failed", MOST_UNRECORDED, GIVEN_UP)]
    for tenant, webhook_id in zip(tenants, beside, strict=True):
        assert [status for status, *_ in shown(tenant, webhook_id)] == ["delivered"] * 2
    (id,) = (one["id"] for one in tenants[0].get(f"/v1/webhooks/{poison}/deliveries").json()["data"])
    assert tenants[0].post(f"/v1/webhooks/{poison}/deliveries/{id}/replay").status_code == 202
    with database.begin() as session:
        assert session.scalar(select(Delivery.unrecorded).where(Delivery.id == id)) == 0


def test_messages_that_were_in_flight_in_a_dead_process_are_sent_one_at_a_time(
    new_tenant, settings, database, black_hole, receiver
):
    suspected, other = new_tenant(), new_tenant()
    hooks = [hook(suspected, black_hole.url) for _ in range(3)]
    for webhook_id in hooks:
        messages(suspected, webhook_id, 1)
    with database.begin() as session:
        session.execute(update(Delivery).where(Delivery.webhook_id.in_(hooks)).values(attempts=1, unrecorded=1))
    courier = Courier(database, Outbound(settings.webhook_networks, seconds=2 * PATIENCE), box_of(settings))
    courier.wake()
    until(lambda: len(black_hole.taken) == 1)
    messages(other, hook(other, receiver.url), 3)
    courier.wake()
    until(lambda: len(receiver.got) == 3)
    assert len(black_hole.taken) == 1
    with database.begin() as session:
        in_flight = Delivery.webhook_id.in_(hooks), Delivery.unrecorded == 2
        assert session.scalar(select(func.count()).where(*in_flight)) == 1
    black_hole.let_go()
    until(lambda: all(error for webhook_id in hooks for _, _, error in shown(suspected, webhook_id)))
    with database.begin() as session:
        assert session.scalar(select(func.sum(Delivery.unrecorded)).where(Delivery.webhook_id.in_(hooks))) == 0


def test_an_unforeseen_exception_counts_and_is_logged(tenant, receiver, due, settings, database, monkeypatch, caplog):
    class Broken(Outbound):
        def post(self, *args, **more):
            raise LookupError("not foreseen")

    webhook_id = hook(tenant, receiver.url)
    messages(tenant, webhook_id, 1)
    courier = Courier(database, Broken(settings.webhook_networks), box_of(settings))
    for _ in range(MOST_UNRECORDED):
        assert courier.work_off_due() == 1
        due()
    assert courier.work_off_due() == 0
    assert shown(tenant, webhook_id) == [("failed", MOST_UNRECORDED, GIVEN_UP)]
    assert caplog.text.count("broke off") == MOST_UNRECORDED
