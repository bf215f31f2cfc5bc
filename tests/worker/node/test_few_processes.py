"""A daemon for which the system starts no more processes: what runs there goes on."""

import os
import signal

from contract.states import RequeueReason
from tests.worker.running_node import LONG, SPACE, fleet_with_placements, running, trains

PROGRAM = "-m", "tests.worker.node.few_processes"
WHY = "could not be started: [Errno 11] Resource temporarily unavailable"


def test_a_placement_without_a_process_is_given_back_and_its_neighbour_trains_on(tiny_base, tmp_path):
    refused = tmp_path / "refused"
    more = {"MOTET_WORKER_SLOTS": "2", "REFUSED_MODULES": str(refused)}
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path, PROGRAM, **more) as node:
        executor = node.child("worker.executor")
        first = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(first))
        fleet.until(lambda: len(node.children("worker.executor")) == 2)
        (spare,) = set(node.children("worker.executor")) - {executor}
        refused.write_text("worker.executor worker.node.heartbeat")
        os.kill(spare, signal.SIGKILL)
        fleet.until(lambda: "ended before it was given anything" in node.log.read_text())
        second = fleet.place(placing(SPACE, **LONG).model_copy(update={"device_indexes": [1]}))
        fleet.until(lambda: fleet.lost)
        os.kill(node.child("worker.node.heartbeat"), signal.SIGKILL)
        steps = len(first.curves[0, "train_loss"])
        fleet.until(lambda: len(first.curves[0, "train_loss"]) > steps)
        fleet.until(lambda: f"worker.node.heartbeat {WHY}" in node.log.read_text())
        beats = len(fleet.heartbeats)
        refused.unlink()
        fleet.until(lambda: len(fleet.heartbeats) > beats and fleet.heartbeats[-1].pulses)
        (lost,) = fleet.lost
        assert (lost.reason, lost.untaken) == (RequeueReason.EXECUTOR_LOST, True)
        assert lost.fences == {second.placement.placement_id: 1}
        assert lost.detail == f"the executor (no process) {WHY}"
        assert node.children("worker.executor")[0] == executor
        assert len(fleet.registrations) == 1
