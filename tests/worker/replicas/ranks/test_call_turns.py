"""Threads take turns in calling one rank."""

import threading
import time

from worker.replicas.ranks.call_turns import CallTurns


def test_turns_are_given_in_the_order_in_which_they_were_asked_for():
    turns, order = CallTurns(), []

    def take(name: str) -> None:
        turns.acquire()
        order.append(name)
        turns.release()

    turns.acquire()
    assert not turns.awaited
    thread = threading.Thread(target=take, args=("thread",))
    thread.start()
    while not turns.awaited:
        time.sleep(0.001)
    turns.release()
    take("loop")  # at once
    thread.join()
    assert order == ["thread", "loop"]
