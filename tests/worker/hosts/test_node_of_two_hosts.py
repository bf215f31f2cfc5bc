"""A daemon whose node has a second host, with real processes on both: which host runs what, and what is given back when the
agent, or the daemon, ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.messages.placement_messages import Placement
from contract.states import RequeueReason
from tests.worker.fleet import Fleet
from tests.worker.hosts.running_agent import SECRET, Agent, running_agent
from tests.worker.processes import gone
from tests.worker.running_node import LONG, PATIENCE, SHORT, SPACE, Node, Placing, running, trains
from worker.hosts.host_messages import EXECUTOR_MODULE, RANK_MODULE

PAIR = {**SPACE, "learning_rate": [1e-3, 3e-3]}


@pytest.fixture
def hosts(tmp_path: Path, fleet: Fleet) -> Iterator[tuple[Node, Agent]]:
    """One device here and one there."""
    folder = tmp_path / "node"
    with running_agent(folder) as agent:
        asked = {"MOTET_WORKER_HOSTS": agent.address, "MOTET_WORKER_HOSTS_SECRET": SECRET, "MOTET_WORKER_SLOTS": "1"}
        with running(fleet, folder, **asked) as node:
            yield node, agent


def on(placement: Placement, key: str, *devices: int) -> Placement:
    return placement.model_copy(update={"placement_id": key, "token": f"token-{key}", "device_indexes": list(devices)})


def test_an_executor_runs_where_the_first_of_its_devices_is(fleet: Fleet, placing: Placing, hosts):
    _, agent = hosts
    assert [device.index for device in fleet.registrations[0].devices] == [0, 1]
    task = placing(PAIR, **SHORT)
    here = fleet.place(on(task, "here", 0))
    there = fleet.place(on(task, "there", 1))
    fleet.until(lambda: len(there.ended) == len(here.ended) == 2)
    (far,) = agent.running(EXECUTOR_MODULE)
    assert there.curves == here.curves
    over, seen = on(task, "over", 0, 1), set[int]()
    fleet.end("here"), fleet.end("there")
    fleet.on_report = lambda reported, report: seen.update(agent.running(RANK_MODULE))
    both = fleet.place(over)
    fleet.until(lambda: len(both.ended) == 2)
    assert len(seen) == 1
    assert both.curves == here.curves
    assert gone(far), "an executor there gave its device up"
    assert fleet.lost == []


def test_a_host_that_is_lost_ends_the_node_which_gives_all_back(fleet: Fleet, placing: Placing, hosts):
    node, agent = hosts
    here, there = (fleet.place(on(placing(SPACE, **LONG), key, device)) for key, device in (("here", 0), ("there", 1)))
    fleet.until(lambda: trains(here)() and trains(there)())
    (far,) = agent.running(EXECUTOR_MODULE)
    agent.process.kill()
    assert gone(far)
    assert node.process.wait(PATIENCE) == 1, "so that it is started anew"
    reasons = {key: said.reason for said in fleet.lost for key in said.fences}
    assert reasons.keys() == {"here", "there"}
    assert reasons["here"] is RequeueReason.NODE_LOST
    assert here.checkpoints, "what ran here was checkpointed"
    details = " ".join(said.detail for said in fleet.lost)
    assert f"a host of this node is lost: {agent.address}" in details


def test_a_host_that_is_to_end_ends_after_its_work_was_checkpointed(fleet: Fleet, placing: Placing, hosts):
    """It tells the daemon, which gives all back and ends; a second signal changes nothing."""
    node, agent = hosts
    there = fleet.place(on(placing(SPACE, **LONG), "there", 1))
    fleet.until(trains(there))
    (far,) = agent.running(EXECUTOR_MODULE)
    agent.process.send_signal(signal.SIGTERM)
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(PATIENCE) == 0
    assert node.process.wait(PATIENCE) == 1
    assert there.checkpoints
    assert gone(far)
    assert f"{agent.address} was asked to end" in fleet.lost[-1].detail


def test_what_runs_there_is_checkpointed_when_the_daemon_stops(fleet: Fleet, placing: Placing, hosts):
    node, agent = hosts
    there = fleet.place(on(placing(SPACE, **LONG), "there", 1))
    fleet.until(trains(there))
    (far,) = agent.running(EXECUTOR_MODULE)
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(PATIENCE) == 0
    assert there.checkpoints
    assert gone(far)
    assert agent.process.poll() is None, "it waits for the node's next start"


def test_a_killed_daemon_leaves_nothing_there(fleet: Fleet, placing: Placing, hosts):
    node, agent = hosts
    there = fleet.place(on(placing(SPACE, **LONG), "there", 1))
    fleet.until(trains(there))
    (far,) = agent.running(EXECUTOR_MODULE)
    node.process.kill()
    assert gone(far)


def test_an_executor_that_is_killed_there_is_reported_and_its_task_goes_on_there(fleet: Fleet, placing: Placing, hosts):
    _, agent = hosts
    there = fleet.place(on(placing(SPACE, **LONG), "there", 1))
    fleet.until(trains(there))
    (far,) = agent.running(EXECUTOR_MODULE)
    os.kill(far, signal.SIGKILL)
    fleet.until(lambda: any("there" in said.fences for said in fleet.lost))
    (said,) = [said for said in fleet.lost if "there" in said.fences]
    assert said.reason is RequeueReason.EXECUTOR_LOST
    assert f"(pid {far} of {agent.address}) ended" in said.detail
    fleet.end("there")
    again = fleet.place(on(placing(PAIR, **SHORT), "again", 1))
    fleet.until(lambda: len(again.ended) == 2)
    assert agent.running(EXECUTOR_MODULE)
