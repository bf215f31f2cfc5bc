"""A node whose disk does not give back a job's weights: the node is to blame, and neither the task nor the devices."""

from contract.states import RequeueReason
from tests.worker.running_node import SHORT, SPACE, fleet_with_placements, running

PROGRAM = "-m", "tests.worker.node.bad_disk"


def test_a_placement_that_is_lost_to_the_disk_counts_against_the_node_alone(tiny_base, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path, PROGRAM):
        placed = fleet.place(placing(SPACE, **SHORT))
        fleet.until(lambda: fleet.lost)
        (lost,) = fleet.lost
        assert lost.fences == {placed.placement.placement_id: 1}
        assert (lost.reason, lost.untaken) == (RequeueReason.EXECUTOR_LOST, True)
        assert "a file of weights in MOTET_WORKER_DIR cannot be read back" in lost.detail
