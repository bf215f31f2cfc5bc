"""The daemon's loop, which renews the leases of all executors, does not wait for one that cannot be ended."""

import os
import queue
import signal
import threading
from typing import Any

import pytest

from tests.worker.conftest import Lacking
from worker.node.child_process import NO_CODE, Child, ChildEnded
from worker.pipe_messages import EXECUTOR_NEWS, Stop

_PATIENCE = 60.0  # seconds


def test_a_child_that_does_not_end_is_killed_without_waiting_for_it():
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    child = Child("tests.worker.node.unseen_end", EXECUTOR_NEWS, events.put)
    tracer = int(events.get(timeout=_PATIENCE).message.placement_id)
    try:
        killing = threading.Thread(target=child.kill, daemon=True)
        killing.start()
        killing.join(_PATIENCE / 4)
        assert not killing.is_alive()
        assert child.alive
    finally:
        os.kill(tracer, signal.SIGKILL)
    assert events.get(timeout=_PATIENCE) == ChildEnded(child, -signal.SIGKILL)


@pytest.mark.parametrize("work", ["_write", "_read"])
def test_a_child_without_its_threads_is_ended_and_said_to_have(lacking: Lacking, work: str):
    """And its maker goes on: the daemon ended, with all its executors."""
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lacking.add(f"worker.executor {work}")
    child = Child("worker.executor", EXECUTOR_NEWS, events.put)
    child.send(Stop(seconds=0))
    child.kill()
    assert events.get(timeout=_PATIENCE) == ChildEnded(
        child, NO_CODE, "could not be started: can't start new thread", started=False
    )
    assert events.empty()
    assert not child.alive
