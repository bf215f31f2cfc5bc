"""Processes that an agent starts: how they end, what is sent to them, and by whose clock."""

import os
import queue
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest
from pydantic import SecretStr

from tests.worker.hosts.running_agent import SECRET, Agent, first_host, running_agent
from tests.worker.processes import gone
from worker.boot_clock import boot_now
from worker.hosts.host_link import HostRefused
from worker.hosts.host_map import HOSTS_VARIABLE, node_environment
from worker.hosts.host_messages import EXECUTOR_MODULE, RANK_MODULE
from worker.hosts.host_process import HostProcess
from worker.node import host_child
from worker.node.child_process import NO_CODE, ChildEnded, ChildMessage
from worker.node.host_child import HostChild, shifted
from worker.node.node_hosts import NodeHosts
from worker.pipe_messages import EXECUTOR_NEWS, Detach, ExecutorProgress, Renew


def test_a_process_ends_with_its_connection_and_with_the_node(tmp_path, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    with running_agent(tmp_path) as agent:
        with pytest.raises(HostRefused, match="this host belongs to no node"):
            HostProcess(agent.address, SecretStr(SECRET), RANK_MODULE, {})
        hosts = NodeHosts(first_host(tmp_path, agent.address), print)
        assert hosts.join(lambda seconds: False)
        its_processes_end(agent, hosts)


def its_processes_end(agent: Agent, hosts: NodeHosts) -> None:
    one, other = (HostProcess(agent.address, SecretStr(SECRET), RANK_MODULE, {"RANK": "1"}) for _ in range(2))
    assert sorted([one.pid, other.pid]) == sorted(agent.running(RANK_MODULE))
    assert not one.ended
    one.close(60.0)
    assert gone(one.pid)
    assert not other.ended
    hosts.close()
    assert gone(other.pid)
    other.close()


@pytest.mark.parametrize("ending", ["killed", "its connection is lost"])
def test_messages_to_a_process_that_has_ended_end_nobody_else(tmp_path, monkeypatch, ending):
    """A line that could not be sent is not tried again as the connection closes, which would end the thread, and the daemon."""
    died, events = [], queue.SimpleQueue[ChildMessage | ChildEnded]()
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    with running_agent(tmp_path) as agent:
        given = first_host(tmp_path, agent.address)
        hosts = NodeHosts(given, print)
        assert hosts.join(lambda seconds: False)
        environment, secret = node_environment(given), SecretStr(SECRET)
        child = HostChild(EXECUTOR_MODULE, EXECUTOR_NEWS, events.put, agent.address, secret, environment, lambda: 0.0)
        until = time.monotonic() + 60
        while not child.pid:
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGSTOP)  # it reads nothing
        for _ in range(2000):
            child.send(Renew(placement_id="p" * 100, deadline=1.0, token="t" * 4000))
        if ending == "killed":
            child.kill()
        else:
            agent.process.kill()
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        ended = events.get(timeout=60)
        assert isinstance(ended, ChildEnded)
        assert ended.why == "ended, or its host is lost"
        assert not child.alive
        hosts.close()
    assert died == []


def test_a_process_that_an_agent_does_not_start_is_told_so(tmp_path):
    events = queue.SimpleQueue[ChildMessage | ChildEnded]()
    with running_agent(tmp_path) as agent:
        child = HostChild(EXECUTOR_MODULE, EXECUTOR_NEWS, events.put, agent.address, SecretStr(SECRET), {}, lambda: 0.0)
        ended = events.get(timeout=60)
    assert ended.why == f"could not be started: {agent.address}: this host belongs to no node"
    assert child.name == f"starting at {agent.address}"


@pytest.mark.parametrize("thread", ["worker.executor of", "pid 7 write"])
def test_a_child_without_its_threads_is_said_to_have_ended(lacking, monkeypatch, thread):
    """And not the daemon, in whose threads it is started."""
    events, (end, its) = queue.SimpleQueue[ChildMessage | ChildEnded](), socket.socketpair()
    monkeypatch.setattr(host_child, "HostProcess", lambda *given: Played(end))
    lacking.add(thread)
    child = HostChild(EXECUTOR_MODULE, EXECUTOR_NEWS, events.put, "there", SecretStr(SECRET), {}, lambda: 0.0)
    assert events.get(timeout=60) == ChildEnded(child, NO_CODE, "could not be started: can't start new thread", started=False)
    assert not child.alive
    child.kill()
    for each in (end, its):
        each.close()


def test_a_child_is_cut_off_at_once_where_no_thread_waits_for_its_agent(lacking, monkeypatch):
    events, (end, its) = queue.SimpleQueue[ChildMessage | ChildEnded](), socket.socketpair()
    monkeypatch.setattr(host_child, "HostProcess", lambda *given: Played(end))
    child = HostChild(EXECUTOR_MODULE, EXECUTOR_NEWS, events.put, "there", SecretStr(SECRET), {}, lambda: 0.0)
    child.send(Renew(placement_id="p", deadline=1.0, token="t"))
    assert its.recv(1), "it has begun"
    lacking.add("pid 7 end")
    child.kill()
    assert isinstance(events.get(timeout=60), ChildEnded)
    its.close()


class Played:
    """In the place of HostProcess, of an agent that does not end it."""

    pid, name = 7, "pid 7"

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def kill(self) -> None:
        pass

    def close(self, seconds: float) -> None:
        self.socket.close()


def test_times_are_told_by_the_readers_clock():
    renew = Renew(placement_id="p", deadline=100.0, token="t")
    assert shifted(renew, -30.0).deadline == 70.0
    progress = ExecutorProgress(phases={}, at=boot_now())
    assert shifted(progress, 5.0).at == progress.at + 5.0
    detach = Detach(placement_id="p")
    assert shifted(detach, 5.0) is detach
