"""Two GPUs as devices of two hosts, the second one's agent at the loopback address: what they train is what they train as
devices of one host. NCCL is told that the processes are on two hosts, and goes over sockets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worker.hosts.running_agent import SECRET, Agent, running_agent
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.replicas.resumption import adapters
from tests.worker.replicas.test_replica_set import CALM, JOB, wide
from worker.hosts.host_map import HOSTS_VARIABLE
from worker.hosts.host_messages import RANK_MODULE
from worker.node.node_hosts import NodeHosts

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]

ON_GPUS = {"worker_device": "cuda"}


@pytest.fixture
def agent(tmp_path: Path, fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Of a host with the second GPU."""
    if torch.cuda.device_count() < 2:
        pytest.skip("NOT RUN: a placement on GPUs of two hosts needs two")
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")  # restored after the test
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "none")  # restored after the test, absent or not
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    far = {"MOTET_WORKER_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "1", "NCCL_HOSTID": "further"}
    with running_agent(tmp_path / "node", **far) as it:
        monkeypatch.setenv("NCCL_HOSTID", "first")
        torch.zeros(1, device="cuda")
        assert torch.cuda.device_count() >= 2  # which is kept from now on
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # for the list of devices
        settings = Inside(fleet, tmp_path / "node", worker_hosts=it.address, worker_hosts_secret=SECRET, **ON_GPUS).settings
        settings.scratch.mkdir(parents=True, exist_ok=True)
        hosts = NodeHosts(settings, print)
        assert hosts.join(lambda seconds: False)
        assert len(hosts.devices) == 2
        yield it
        hosts.close()


@pytest.mark.parametrize("sharding", ["never", "always"])
def test_gpus_of_two_hosts_train_what_those_of_one_do(fleet, deep_base, tmp_path, agent, monkeypatch, sharding):
    space = {**JOB, "learning_rate": [1e-2, 1e-3, 3e-3]}
    placement = placer(fleet, deep_base)(space, early_exit=CALM, training={"max_steps": 8})
    settings, seen = {**ON_GPUS, "worker_sharding": sharding}, set[int]()
    fleet.on_report = lambda reported, report: seen.update(agent.running(RANK_MODULE))
    far = Inside(fleet, tmp_path / "node", worker_hosts=agent.address, worker_hosts_secret=SECRET, **settings)
    (apart,) = far.run(wide(placement, "apart"))
    assert len(seen) == 1
    for name in (HOSTS_VARIABLE, "NCCL_HOSTID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name)
    (together,) = Inside(fleet, tmp_path / "together", **settings).run(wide(placement, "together"))
    assert len(seen) == 1
    assert apart.curves == together.curves
    assert adapters(apart) == adapters(together) != {}
