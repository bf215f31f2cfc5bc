"""Results of attempts that come while their message is replayed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from service.webhooks.courier import Courier
from service.webhooks.factories import box_of, outbound_of
from service.webhooks.models import Delivery
from tests.service.live_server import PATIENCE
from tests.service.webhooks import test_webhooks
from tests.service.webhooks.serving import serving
from tests.service.webhooks.test_webhooks import Receiver, sent

settings, courier, hook = test_webhooks.settings, test_webhooks.courier, test_webhooks.hook


class Halting(Receiver):
    """Answers no request before it may `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = _Halting
        self.asked, self.go_on = Event(), Event()


class _Halting(test_webhooks._Handler):
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
def replay(tenant, hook):
    def act(id: str) -> None:
        again = tenant.post(f"/v1/webhooks/{hook['id']}/deliveries/{id}/replay")
        assert (again.status_code, again.json()["attempts"]) == (202, 0)

    return act


@pytest.mark.parametrize("status", [500, 200])
def test_an_attempt_under_way_takes_nothing_from_a_replay(tenant, hook, receiver, courier, tested, replay, status):
    """Neither its first attempt at once, nor any of the others."""
    receiver.answers = [status]
    with ThreadPoolExecutor(1) as pool:
        id = tested()
        attempts = pool.submit(courier.deliver_due)
        assert receiver.asked.wait(PATIENCE)
        replay(id)
        receiver.go_on.set()
        assert attempts.result(PATIENCE) == 2
    (delivery,) = sent(tenant, hook)
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == ("delivered", 1, 200)


def test_an_attempt_under_way_leaves_the_replays_first_alone(receiver, courier, settings, database, tested, replay):
    def row() -> Delivery:
        with database.begin() as session:
            return session.get_one(Delivery, id)

    receiver.answers = [500]
    with ThreadPoolExecutor(1) as pool:
        id = tested()
        attempts = pool.submit(courier.deliver_due)
        assert receiver.asked.wait(PATIENCE)
        replay(id)
        assert len(Courier(database, outbound_of(settings), box_of(settings))._take()) == 1
        before = row()
        receiver.go_on.set()
        assert attempts.result(PATIENCE) == 1
    after = row()
    assert (after.attempts, after.unrecorded, after.last_status) == (1, 1, 500)
    assert after.next_at == before.next_at, "until then it is the other courier's"
