"""A merge on a daemon with its real children: given back when the worker stops, taken up again under another lease."""

import signal

import pytest

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import MergeWork
from tests.worker.running_node import PATIENCE, fleet_with_placements, running

ADAPTER = AdapterFile(path="adapter_config.json", sha256="a" * 64, bytes=1)


@pytest.fixture
def work(tiny_base):
    lease = {"placement_id": "merged_1", "fence": 3, "token": "token-merged_1", "lease_seconds": 900.0, "device_indexes": []}
    return MergeWork(**lease, base=tiny_base, tenant_id="tenant_1", adapter=[ADAPTER], max_shard_bytes=1, readme="")


def test_a_worker_that_stops_gives_its_merge_back(tiny_base, work, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, _), running(fleet, tmp_path) as node:
        fleet.away.add(ADAPTER.sha256)  # so the merge is under way, and comes to no end
        fleet.merge(work)
        fleet.until(lambda: any(ADAPTER.sha256 in path for _, path, _ in fleet.requests))
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE) == 0
        begun, lost = fleet.lost
        assert (begun.stopping, begun.fences) == (True, {})
        assert (lost.stopping, lost.fences) == (True, {"merged_1": 3})


def test_a_merge_whose_lease_ended_here_is_taken_up_under_its_next_one(tiny_base, work, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path, lease_seconds=0.0) as (fleet, _), running(fleet, tmp_path):
        fleet.away.add(ADAPTER.sha256)
        fleet.merge(work.model_copy(update={"lease_seconds": 0.0}))
        fleet.until(lambda: any(beat.pulses for beat in fleet.heartbeats))
        fleet.until(lambda: not fleet.heartbeats[-1].pulses)  # the service lists it all the same, until it looks at leases
        with fleet.lock:
            fleet.merges, fleet.lease_seconds = [], 900.0  # queued, of which the node is not told
        fleet.merge(work.model_copy(update={"fence": 4}))
        fleet.until(lambda: any(ADAPTER.sha256 in path for _, path, _ in fleet.requests))
        fleet.until(lambda: [pulse.fence for pulse in fleet.heartbeats[-1].pulses] == [4])


def test_a_merge_that_is_held_under_an_older_lease_makes_room_for_the_next(tiny_base, work, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, _), running(fleet, tmp_path):
        fleet.away.add(ADAPTER.sha256)
        fleet.merge(work)
        fleet.until(lambda: any(ADAPTER.sha256 in path for _, path, _ in fleet.requests))
        with fleet.lock:
            fleet.merges = []
        fleet.merge(work.model_copy(update={"fence": 4}))
        fleet.until(lambda: [pulse.fence for pulse in fleet.heartbeats[-1].pulses] == [4])
