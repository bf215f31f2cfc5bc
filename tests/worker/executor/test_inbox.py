"""What waits for the training loop, and for what the loop stops its devices."""

import itertools
import queue
import signal
import threading
import time

import pytest

from worker.executor import inbox as inbox_module
from worker.executor.inbox import Inbox


@pytest.fixture
def clock(monkeypatch):
    """The time, which stands still until it is set."""
    now = [1000.0]
    monkeypatch.setattr(inbox_module, "boot_now", lambda: now[0])
    return now


def test_the_loop_stops_at_once_for_a_callback_and_for_a_patient_one_within_five_seconds(clock):
    inbox = Inbox()
    assert not inbox.waits
    inbox.put(lambda: None, patient=True)
    clock[0] += 4.9
    assert not inbox.waits
    clock[0] += 0.2
    assert inbox.waits
    inbox.get()
    assert not inbox.waits
    inbox.put(lambda: None)
    assert inbox.waits


def test_callbacks_come_in_their_order_whatever_their_patience(clock):
    inbox, ran = Inbox(), []
    for number, patient in enumerate((True, False, True)):
        inbox.put(lambda number=number: ran.append(number), patient)
    inbox.get()()
    assert inbox.waits
    inbox.get()()
    assert not inbox.waits  # for the patient one that is left
    inbox.get()()
    assert ran == [0, 1, 2]
    with pytest.raises(queue.Empty):
        inbox.get()
    assert not inbox.waits


def test_a_loop_that_has_nothing_else_to_do_gets_a_patient_callback_when_it_comes():
    inbox, ran = Inbox(), []
    thread = threading.Thread(target=lambda: inbox.put(lambda: ran.append(1), patient=True))
    thread.start()
    inbox.get(timeout=60)()
    thread.join()
    assert ran == [1]


def test_a_signals_handler_may_put_wherever_its_thread_is(monkeypatch):
    """As SIGTERM does, while the loop's thread puts or looks."""
    inbox, ran, calls = Inbox(), [], itertools.count()

    def interrupted():
        if next(calls) in (0, 3):
            signal.raise_signal(signal.SIGUSR1)
        return time.monotonic()

    monkeypatch.setattr(inbox_module, "boot_now", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: inbox.put(lambda: ran.append("handler's")))
    try:
        inbox.put(lambda: ran.append("own"), patient=True)
        assert inbox.waits  # for the handler's
        inbox.get()()
        inbox.get()()
        assert ran == ["handler's", "own"]
        assert inbox.waits  # for what was put as it looked
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_many_threads_put_and_nothing_is_left_waiting():
    inbox, ran = Inbox(), []
    threads = [
        threading.Thread(target=lambda: [inbox.put(lambda: ran.append(1), number % 2 == 0) for number in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while len(ran) < 2000:
        inbox.get(timeout=60)()
    for thread in threads:
        thread.join()
    assert not inbox.waits
