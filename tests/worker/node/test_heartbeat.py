"""Heartbeats go on where the disk of the node fails: without them all tasks of the node would be lost."""

from tests.worker.running_node import LONG, SPACE, fleet_with_placements, running, trains
from worker.data.base_cache import BASES


def test_a_cache_of_bases_that_cannot_be_read_costs_no_lease(tiny_base, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path) as node:
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        fleet.until(lambda: fleet.heartbeats[-1].bases == [])
        heart = node.child("worker.node.heartbeat")
        (folder,) = (path.parent for path in tmp_path.rglob("credential.json"))
        (folder / BASES).rename(folder / "aside")
        (folder / BASES).touch()
        fleet.until(lambda: fleet.heartbeats[-1].bases is None)
        before = len(fleet.heartbeats)
        fleet.until(lambda: len(fleet.heartbeats) > before + 2)
        assert fleet.heartbeats[-1].pulses
        assert node.log.read_text().count("the cache of bases cannot be read") == 1
        (folder / BASES).unlink()
        fleet.until(lambda: fleet.heartbeats[-1].bases == [])
        assert node.child("worker.node.heartbeat") == heart
        assert fleet.lost == []
