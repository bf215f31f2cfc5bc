"""Results of attempts that come while their message is replayed, or their webhook ends: by another's 410, or deleted."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from sqlalchemy import select

from service.webhooks.courier import Courier
from service.webhooks.factories import box_of, outbound_of
from service.webhooks.models import Delivery, Webhook
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks
from tests.service.webhooks import test_webhooks
from tests.service.webhooks.receiver import Receiver, ReceiverHandler
from tests.service.webhooks.serving import serving
from tests.service.webhooks.test_webhooks import sent

settings, courier, hook = test_webhooks.settings, test_webhooks.courier, test_webhooks.hook


class Halting(Receiver):
    """Answers no request before it may `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _Halting
        self.asked, self.go_on = Event(), Event()


class _Halting(ReceiverHandler):
    server: Halting

    def do_POST(self) -> None:
        self.server.asked.set()
        self.server.go_on.wait(PATIENCE)
        super().do_POST()


@pytest.fixture
def receiver() -> Iterator[Halting]:
    with serving(Halting()) as made:
        yield made


@pytest.fixture
def tested(tenant, hook):
    """Send the webhook a message; its id."""

    def act() -> str:
        return tenant.post(f"/v1/webhooks/{hook['id']}/test").json()["id"]

    return act


@pytest.fixture
def overtaken(tenant, hook, receiver, courier, tested):
    """Replay a message while an attempt of it is under way, which is answered once `meanwhile` has run; returns the attempts
    that the courier then made."""

    def act(meanwhile: Callable[[str], object] = lambda id: None) -> int:
        with ThreadPoolExecutor(1) as pool:
            id = tested()
            attempts = pool.submit(courier.work_off_due)
            assert receiver.asked.wait(PATIENCE)
            again = tenant.post(f"/v1/webhooks/{hook['id']}/deliveries/{id}/replay")
            assert (again.status_code, again.json()["attempts"]) == (202, 0)
            meanwhile(id)
            receiver.go_on.set()
            return attempts.result(PATIENCE)

    return act


@pytest.mark.parametrize("status", [500, 200])
def test_an_attempt_under_way_takes_nothing_from_a_replay(tenant, hook, receiver, overtaken, status):
    """Neither its first attempt at once, nor any of the others."""
    receiver.answers = [status]
    assert overtaken() == 2
    (delivery,) = sent(tenant, hook)
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == ("delivered", 1, 200)


def test_an_attempt_under_way_leaves_the_replays_first_alone(receiver, settings, database, overtaken):
    taken = list[Delivery]()

    def row(id: str) -> Delivery:
        with database.begin() as session:
            return session.get_one(Delivery, id)

    def take(id: str) -> None:
        assert len(Courier(database, outbound_of(settings), box_of(settings)).take(2).rows) == 1
        taken.append(row(id))

    receiver.answers = [500]
    assert overtaken(take) == 1
    (before,) = taken
    after = row(before.id)
    assert (after.attempts, after.unrecorded, after.last_status) == (1, 1, 500)
    assert after.next_at == before.next_at, "until then it is the other courier's"


def test_answers_of_410_at_one_moment_do_not_wait_for_each_other(tenant, hook, receiver, courier, database, tested):
    receiver.answers = [410] * 2
    receiver.go_on.set()
    with ThreadPoolExecutor(1) as pool:
        ids = [tested() for _ in receiver.answers]
        with database.begin() as session:
            session.get_one(Webhook, hook["id"], with_for_update=True)
            attempts = pool.submit(courier.work_off_due)
            until(lambda: attempts.done() or waiting_for_locks(database) == len(ids))
        assert attempts.result(PATIENCE) == len(ids)
    with database.begin() as session:
        assert session.get_one(Webhook, hook["id"]).disabled == "gone"
        rows = session.scalars(select(Delivery).where(Delivery.id.in_(ids))).all()
        assert [(row.status, row.last_status, row.unrecorded) for row in rows] == [("failed", 410, 0)] * len(ids)


def test_a_webhook_is_deleted_while_its_receiver_answers_410(hook, receiver, courier, database, tested, caplog):
    receiver.answers = [410]
    receiver.go_on.set()
    with ThreadPoolExecutor(1) as pool:
        tested()
        with database.begin() as session:
            webhook = session.get_one(Webhook, hook["id"], with_for_update=True)
            attempts = pool.submit(courier.work_off_due)
            until(lambda: attempts.done() or waiting_for_locks(database))
            session.delete(webhook)
        assert attempts.result(PATIENCE) == 1
    assert "may have no outcome" not in caplog.text
    with database.begin() as session:
        assert session.scalars(select(Delivery).where(Delivery.webhook_id == hook["id"])).all() == []


def test_410_to_an_attempt_from_before_a_replay_ends_the_replay_too(tenant, hook, receiver, overtaken):
    """Or it would wait for ever."""
    receiver.answers = [410]
    assert overtaken() == 1
    (delivery,) = sent(tenant, hook)
    assert (delivery["status"], delivery["last_status"]) == ("failed", 410)


_STOPPED = """
import sys
from service.dependencies import Dependencies
from service.settings import Settings
from service.webhooks.factories import courier_of
settings = Settings.load()
courier = courier_of(settings, Dependencies.of(settings).db)
courier.wake()
sys.stdin.readline()
courier.close(0.0)
print("closed", flush=True)
"""


def test_a_process_ends_once_what_is_in_flight_has_its_outcome(tenant, hook, receiver, settings, environment_of, tested):
    tested()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _STOPPED], env=environment_of(settings), **pipes) as process:
        assert receiver.asked.wait(PATIENCE)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "closed\n"
        receiver.go_on.set()
        assert process.wait(PATIENCE) == 0
    (delivery,) = sent(tenant, hook)
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == ("delivered", 1, 200)
