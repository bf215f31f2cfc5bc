"""Executors that hang or end: asked to end, and while they load."""

import os
import signal
from itertools import pairwise

from tests.worker.fleet import Fleet
from tests.worker.processes import gone
from tests.worker.running_node import LONG, PATIENCE, SHORT, SPACE, fleet_with_placements, running


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


def ages(fleet: Fleet, key: str) -> list[float]:
    """Of each heartbeat while this placement loads: for how long its executor has said nothing, in seconds."""
    pulses = [pulse for beat in fleet.heartbeats for pulse in beat.pulses if pulse.placement_id == key]
    return [pulse.progress_age for pulse in pulses if pulse.phase == "loading"]


def test_an_executor_that_hangs_while_it_loads_is_known_by_its_silence(tiny_base, tmp_path):
    """The service ends what such a one holds, also one that was idle when it was stopped."""
    slots = {"MOTET_WORKER_SLOTS": "2"}
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path, **slots) as node:
        wide = placing(SPACE, **SHORT).model_copy(update={"device_indexes": [0, 1]})
        first = fleet.place(wide)
        fleet.until(node.ranks)
        (rank,) = node.ranks()
        os.kill(rank, signal.SIGSTOP)  # its load takes as long as that
        fleet.until(lambda: sum(later < age for age, later in pairwise(ages(fleet, wide.placement_id))) > 5)
        os.kill(rank, signal.SIGCONT)
        fleet.until(lambda: first.ended)
        executor = node.child("worker.executor")
        fleet.until(lambda: not fleet.heartbeats[-1].pulses)
        os.kill(executor, signal.SIGSTOP)
        silent = placing(SPACE, **SHORT).model_copy(update={"device_indexes": [0, 1]})
        fleet.place(silent)
        fleet.until(lambda: len(ages(fleet, silent.placement_id)) > 20)
        assert ages(fleet, silent.placement_id) == sorted(ages(fleet, silent.placement_id))
        fleet.end(silent.placement_id)  # what the service does about it
        assert gone(executor)


def test_an_executor_that_is_asked_to_end_while_its_ranks_load_is_said_to_stop(tiny_base, tmp_path):
    """And not that a thread died: it waits for ranks that are ended meanwhile."""
    with (
        fleet_with_placements(tiny_base, tmp_path) as (fleet, placing),
        running(fleet, tmp_path, MOTET_WORKER_SLOTS="2") as node,
    ):
        reported = fleet.place(placing(SPACE, **LONG).model_copy(update={"device_indexes": [0, 1]}))
        fleet.until(node.ranks)
        node.process.terminate()
        assert node.process.wait(timeout=PATIENCE) == 0
        assert fleet.lost[-1].fences == {reported.placement.placement_id: 1}
        assert "Traceback" not in node.log.read_text()
