"""A node that joins while the system starts no more threads waits for them: its daemon ended."""

import queue
import threading
from typing import Any

import pytest

from contract.states import RequeueReason
from tests.worker.conftest import Lacking
from tests.worker.fleet import JOIN_TOKEN, Fleet
from worker.api_client import NodeLink
from worker.node.desired_state_poller import Desired
from worker.node.node_credential import NodeCredential
from worker.node.node_hosts import NodeHosts
from worker.node.node_registration import join
from worker.settings import Settings

OWN = "desired state", "hints", "cache upkeep"
PATIENCE = 60.0


@pytest.mark.parametrize("thread", OWN)
def test_it_serves_once_its_threads_can_be_started(fleet: Fleet, tmp_path, lacking: Lacking, caplog, thread: str) -> None:
    before = {one for one in threading.enumerate() if one.name in OWN}
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    settings = Settings(
        api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_device="cpu", redis_url="redis://127.0.0.1:1"
    )
    settings.scratch.mkdir(parents=True)
    lacking.add(thread)
    waits = []

    def stop_requested(seconds: float) -> bool:
        waits.append({one.name for one in threading.enumerate() if one.name in OWN and one not in before})
        if len(waits) == 2:
            lacking.clear()
        return False

    with NodeLink(fleet.url) as link:
        hosts, credential = NodeHosts(settings, events.put), NodeCredential(settings.scratch)
        member = join(settings, link, hosts, events.put, stop_requested, credential)
        assert member is not None
        try:
            assert len(waits) == 2
            assert thread not in waits[0] | waits[1]
            assert caplog.text.count("this node takes no work yet") == 1
            while not isinstance(events.get(timeout=PATIENCE), Desired):
                pass
            fleet.until(lambda: fleet.heartbeats)
            assert [(said.reason, said.stopping) for said in fleet.lost] == [(RequeueReason.NODE_LOST, True)] * 2, (
                "or it is given tasks that nobody takes up"
            )
            assert len(fleet.registrations) == 3, "which the last takes back"
        finally:
            member.close(PATIENCE)


def test_it_joins_once_threads_can_be_started(fleet: Fleet, tmp_path, lacking: Lacking, caplog) -> None:
    settings = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_device="cpu")
    settings.scratch.mkdir(parents=True)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lacking.add("trial")
    registered = []

    def stop_requested(seconds: float) -> bool:
        registered.append(len(fleet.registrations))
        if len(registered) == 2:
            lacking.clear()
        return False

    with NodeLink(fleet.url) as link:
        hosts, credential = NodeHosts(settings, events.put), NodeCredential(settings.scratch)
        member = join(settings, link, hosts, events.put, stop_requested, credential)
        assert member is not None
        member.close(PATIENCE)
    assert registered == [0, 0], "it was given no tasks"
    assert caplog.text.count("this node does not join yet") == 1
    assert len(fleet.registrations) == 1
    assert fleet.lost == []


def test_one_that_waits_for_threads_can_be_stopped(fleet: Fleet, tmp_path, lacking: Lacking) -> None:
    settings = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_device="cpu")
    settings.scratch.mkdir(parents=True)
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    lacking.add("cache upkeep")
    with NodeLink(fleet.url) as link:
        hosts, credential = NodeHosts(settings, events.put), NodeCredential(settings.scratch)
        assert join(settings, link, hosts, events.put, lambda seconds: True, credential) is None
    assert [(said.reason, said.stopping) for said in fleet.lost] == [(RequeueReason.NODE_LOST, True)], (
        "or it is given tasks yet"
    )
