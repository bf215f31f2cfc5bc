"""A placement on devices of two hosts, the second one's agent at the loopback address: each job is bit for bit the job of one
device, and what ends a rank or its host ends the executor, whose jobs go on elsewhere."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.messages.report_messages import JobMoved
from contract.states import JobStatus
from tests.worker.hosts.running_agent import SECRET, Agent, running_agent
from tests.worker.inside import Inside, resumed
from tests.worker.placer import placer
from tests.worker.processes import gone
from tests.worker.replicas.resumption import adapters, assert_goes_on_from_checkpoints
from tests.worker.replicas.test_replica_set import CALM, JOB, wide
from tests.worker.replicas.test_sharded_base import ALWAYS, PAIRS
from worker.boot_clock import boot_now
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.hosts.host_map import HOSTS_VARIABLE, HostMap
from worker.hosts.host_messages import RANK_MODULE
from worker.model.sharding.rank_collectives import GatherFailed
from worker.node.node_hosts import NodeHosts
from worker.replicas.base_loader import BaseError
from worker.replicas.ranks.placement_devices import devices_of
from worker.replicas.ranks.rank_group import RankGroup
from worker.replicas.ranks.rank_process import RankLost

pytestmark = pytest.mark.usefixtures("measured_once")


@pytest.fixture
def agent(tmp_path: Path, fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Of a host with three devices, beside one device here: the node's environment says so."""
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")  # restored after the test
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "none")  # restored after the test, absent or not
        monkeypatch.delenv(name)
    with running_agent(tmp_path / "node", slots=3) as it:
        settings = Inside(fleet, tmp_path / "node", worker_hosts=it.address, worker_hosts_secret=SECRET).settings
        settings.scratch.mkdir(parents=True, exist_ok=True)
        hosts = NodeHosts(settings, print)
        assert hosts.join(lambda seconds: False)
        yield it
        hosts.close()


def inside(fleet, tmp_path: Path, agent: Agent, **settings) -> Inside:
    return Inside(fleet, tmp_path / "node", worker_hosts=agent.address, worker_hosts_secret=SECRET, **settings)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_jobs_on_two_hosts_are_those_of_one_device(fleet, placing, tmp_path, agent, devices):
    """A replica has room for one of five, so that jobs wait, are parked, and move between the hosts with their best weights."""
    space = {"learning_rate": [1e-2, 1e-3, 3e-3, 1e-4, 3e-2], "rank": [8], "batch_size": [4], "dropout": [0.1]}
    early_exit = {"warmup_fraction": 0.3, "keep_fraction": 0.6, "tau_gap": 10.0}
    placement, seen = placing(space, early_exit=early_exit, training={"epochs": 1}), set[int]()
    (narrow,) = Inside(fleet, tmp_path / "narrow", worker_step_tokens=300).run(placement)
    fleet.on_report = lambda reported, report: seen.update(agent.running(RANK_MODULE))
    (reported,) = inside(fleet, tmp_path, agent, worker_step_tokens=300).run(wide(placement, devices=devices))
    assert len(seen) == devices - 1, "the others are on the further host"
    assert all(gone(pid) for pid in seen)
    assert any(e.status is JobStatus.PARKED for e in reported.of(JobMoved))
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}


@pytest.mark.parametrize(
    "form", ["sft", pytest.param("dpo", marks=pytest.mark.slow), pytest.param("nf4", marks=pytest.mark.slow)]
)
def test_a_base_is_sharded_over_two_hosts(fleet, deep_base, tmp_path, agent, form):
    placing, space = placer(fleet, deep_base), {**JOB, "learning_rate": [3e-3, 1e-3, 1e-2]}
    task = {"early_exit": CALM, "training": {"max_steps": 6}}
    if form == "dpo":
        placement = placing({**space, "beta": [0.1]}, PAIRS, objective={"type": "dpo"}, **task)
    else:
        placement = placing(space, precision="nf4" if form == "nf4" else "bf16", **task)
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placement)
    (reported,) = inside(fleet, tmp_path, agent, **ALWAYS).run(wide(placement, devices=2))
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo", "by the address of the agent"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("hurt", "sharded"),
    [
        ("rank killed", False),
        ("rank stopped", False),
        ("agent killed", True),
        pytest.param("agent killed", False, marks=pytest.mark.slow),
        pytest.param("rank killed", True, marks=pytest.mark.slow),
    ],
)
def test_what_is_lost_over_there_ends_the_executor_and_its_jobs_go_on(
    fleet, deep_base, tmp_path, agent, monkeypatch, hurt, sharded
):
    placing, how = placer(fleet, deep_base), ALWAYS if sharded else {}
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3, 1e-4]}, early_exit=CALM, training={"max_steps": 24})
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    monkeypatch.setattr("worker.executor.attached_placements._SILENT_SECONDS", 2.0)
    lost, hit = wide(placement, "lost"), []

    def strike():
        reported = fleet.reported["lost"]
        if hit or not reported.checkpoints or min(reported.step.values()) < 6:
            return
        hit.extend(agent.running(RANK_MODULE))
        if hurt == "agent killed":
            agent.process.kill()
        else:
            os.kill(hit[0], signal.SIGKILL if hurt == "rank killed" else signal.SIGSTOP)
        if hurt == "rank stopped":
            monkeypatch.setattr("worker.executor.placement.placement_lease.boot_now", lambda: boot_now() + fleet.lease_seconds)

    running = inside(fleet, tmp_path, agent, worker_checkpoint_seconds=0.001, **how)
    running.between_steps = strike
    with pytest.raises(LeaseNotHeld if hurt == "rank stopped" else (RankLost, GatherFailed)) as error:
        running.run(lost, paced=True)
    if hurt == "rank killed" and not sharded:
        assert f"rank 1 (pid {hit[0]} of {agent.address}) ended, or its host is lost" in str(error.value)
    (rank,) = hit
    assert gone(rank)
    reported = fleet.reported["lost"]
    assert not reported.ended
    reported.live = False
    monkeypatch.undo()
    (rest,) = Inside(fleet, tmp_path / "rest").run(resumed(reported, "rest"))
    assert_goes_on_from_checkpoints(reported, rest, unbroken)


def test_a_folder_that_holds_another_base_over_there_is_refused(fleet, tiny_base, tmp_path, agent, monkeypatch):
    """This host's own check passes; the further one's does not."""
    settings = inside(fleet, tmp_path, agent).settings
    monkeypatch.setattr("worker.replicas.base_loader.check_revision", lambda ref: None)
    group, placed = RankGroup(lambda silent: None), devices_of([0, 1], settings)
    assert placed.hosts == (None, agent.address)
    with pytest.raises(BaseError, match="have revision"):
        group.load(tiny_base.model_copy(update={"revision": "0" * 64}), placed.devices, settings, hosts=placed.hosts)
    group.close()


def test_devices_are_numbered_by_their_hosts(fleet, tmp_path, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, HostMap.of(2, [("b:1", 2), ("c:1", 4)]).model_dump_json())
    settings = Inside(fleet, tmp_path, worker_device="cuda").settings
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    placed = devices_of([5, 1, 3], settings)
    assert [device.index for device in placed.devices] == [1, 1, 1]
    assert placed.hosts == (None, "b:1", "c:1")
    placed = devices_of([2, 3], settings)
    assert [device.index for device in placed.devices] == [0, 1]
    assert placed.hosts == (None, None), "the executor is on their host"
    monkeypatch.delenv(HOSTS_VARIABLE)
    assert devices_of([0, 3], settings).hosts == (None, None)
