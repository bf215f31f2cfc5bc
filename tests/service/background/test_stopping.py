"""Background threads are stopped together: what one of them does last may take as long as a stop may, for all of them."""

import signal
import threading
from collections.abc import Iterator

import pytest
from rq.exceptions import StopRequested
from sqlalchemy.exc import OperationalError

from service.background import queue_worker
from service.background.stopping import stop_all
from service.http.outbound import Outbound
from service.messaging.claim_courier import ClaimCourier, Taken
from service.messaging.queue import NamedQueueJob, QueueJob
from service.webhooks.courier import Courier
from service.webhooks.factories import box_of
from tests.service.live_server import PATIENCE, until
from tests.service.webhooks import test_webhook_fairness
from tests.service.webhooks.test_webhook_fairness import hook, messages

settings = test_webhook_fairness.settings
black_hole = test_webhook_fairness.black_hole


class OneRow(ClaimCourier[str]):
    """Its only row is done once every one of `asked` is asked to stop."""

    name, slots = "one row", 1

    def __init__(self, asked: threading.Barrier) -> None:
        super().__init__()
        self._asked, self._rows = asked, ["row"]
        self.began, self.stopping = threading.Event(), threading.Event()
        self.done, self.released = list[str](), list[str]()

    def take(self, most: int) -> Taken[str]:
        return Taken([self._rows.pop()] if self._rows else [])

    def work_off(self, claimed: str) -> None:
        self.began.set()
        self.stopping.wait(PATIENCE)
        self._asked.wait(PATIENCE)
        self.done.append(claimed)

    def release(self, claimed: str) -> None:
        self.released.append(claimed)

    def stop(self) -> None:
        super().stop()
        self.stopping.set()


def test_all_are_asked_to_stop_before_one_is_waited_for():
    asked = threading.Barrier(3)
    works = [OneRow(asked) for _ in range(3)]
    for work in works:
        work.wake()
        assert work.began.wait(PATIENCE)
    stop_all(works, seconds=PATIENCE / 3)
    assert [(work.done, work.released) for work in works] == [(["row"], [])] * 3


def test_what_does_not_end_is_given_back_within_one_limit_for_all():
    works = [OneRow(threading.Barrier(2)) for _ in range(3)]
    for work in works:
        work.wake()
        assert work.began.wait(PATIENCE)
    stop_all(works, seconds=0.0)
    assert [(work.done, work.released) for work in works] == [([], ["row"])] * 3
    for work in works:
        work._asked.wait(PATIENCE)
        until(lambda done=work.done: done)


class NoDatabase(OneRow):
    """Its database does not answer a sweep."""

    def __init__(self) -> None:
        super().__init__(threading.Barrier(1))
        self.asked, self.asked_again = threading.Event(), threading.Event()

    def sweep(self) -> None:
        (self.asked_again if self.asked.is_set() else self.asked).set()
        raise OperationalError("select 1", {}, ConnectionError("no server is there"))


def test_a_courier_asks_a_database_that_is_away_once_for_each_time_that_it_is_woken():
    courier = NoDatabase()
    courier.wake()
    assert courier.asked.wait(PATIENCE)
    assert not courier.asked_again.wait(0.3), "it asks on end, and logs as often"
    courier.wake()
    assert courier.asked_again.wait(PATIENCE)
    courier.close()


@pytest.fixture
def courier(settings, database) -> Iterator[Courier]:
    made = Courier(database, Outbound(settings.webhook_networks, seconds=2 * PATIENCE), box_of(settings))
    yield made
    until(lambda: not made._in_flight)


def test_a_stopped_courier_takes_no_more_messages(new_tenant, black_hole, courier):
    """Those in flight may end."""
    one, other = new_tenant(), new_tenant()
    messages(one, hook(one, black_hole.url), 1)
    courier.wake()
    until(lambda: len(black_hole.taken) == 1)
    courier.stop()
    messages(other, hook(other, black_hole.url), 1)
    courier.wake()
    assert courier.work_off_due() == 0
    courier._thread.join(PATIENCE)
    assert not courier._thread.is_alive()
    assert len(black_hole.taken) == 1
    black_hole.let_go()
    courier.close(PATIENCE)
    assert not courier._in_flight


def test_a_queue_worker_that_is_stopped_waits_for_what_is_in_flight(settings, new_tenant, black_hole, courier, monkeypatch):
    """Its courier would take more while the process ends, and a call that is cut has no outcome."""
    one, url = new_tenant(), black_hole.url
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def answered() -> None:
        until(lambda: courier._stopping.is_set())
        black_hole.let_go()

    class Stopped(queue_worker._Worker):
        def work(self, *_: object, **__: object) -> bool:
            messages(one, hook(one, url), 1)
            NamedQueueJob.work[QueueJob.DELIVER]()
            until(lambda: len(black_hole.taken) == 1)
            threading.Thread(target=answered).start()
            signal.raise_signal(signal.SIGTERM)
            raise StopRequested

    monkeypatch.setattr(queue_worker, "_Worker", Stopped)
    monkeypatch.setattr(queue_worker, "courier_of", lambda *_: courier)
    try:
        queue_worker.run_worker(settings)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not courier._in_flight, "the call in flight has ended"
    messages(one, hook(one, url), 1)
    assert courier.work_off_due() == 0
