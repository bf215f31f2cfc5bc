"""Executors that are asked to end, and do not."""

import os
import signal

from tests.worker.processes import gone
from tests.worker.running_node import SHORT, SPACE, fleet_with_placements, running


def test_an_idle_executor_that_hangs_when_it_is_asked_to_end_gives_its_devices_back(tiny_base, tmp_path):
    slots = {"MOTET_WORKER_SLOTS": "2"}
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path, **slots) as node:
        wide = fleet.place(placing(SPACE, **SHORT).model_copy(update={"device_indexes": [0, 1]}))
        fleet.until(lambda: wide.ended)
        executor = node.child("worker.executor")
        fleet.until(lambda: fleet.heartbeats and not fleet.heartbeats[-1].pulses)
        os.kill(executor, signal.SIGSTOP)
        narrow = fleet.place(placing(SPACE, **SHORT))  # on the first of them alone, for which the idle one has to end
        fleet.until(lambda: narrow.ended, 60)
        assert gone(executor)
