"""A merge on a daemon with its real children: given back when the worker stops."""

import signal

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import MergeWork
from tests.worker.running_node import PATIENCE, fleet_with_placements, running

ADAPTER = AdapterFile(path="adapter_config.json", sha256="a" * 64, bytes=1)


def test_a_worker_that_stops_gives_its_merge_back(tiny_base, tmp_path):
    lease = {"placement_id": "merged_1", "fence": 3, "token": "token-merged_1", "lease_seconds": 900.0, "device_indexes": []}
    work = MergeWork(**lease, base=tiny_base, tenant_id="tenant_1", adapter=[ADAPTER], max_shard_bytes=1, readme="")
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, _), running(fleet, tmp_path) as node:
        fleet.away.add(ADAPTER.sha256)  # so the merge is under way, and comes to no end
        fleet.merge(work)
        fleet.until(lambda: any(ADAPTER.sha256 in path for _, path, _ in fleet.requests))
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE) == 0
        begun, lost = fleet.lost
        assert (begun.stopping, begun.fences) == (True, {})
        assert (lost.stopping, lost.fences) == (True, {"merged_1": 3})
