"""The connection between hosts of a node: who has the secret, what an agent declines, and whose clock a message tells."""

import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from contract.messages.node_messages import Device
from tests.free_ports import free_port
from tests.worker.hosts.running_agent import SECRET, Agent, first_host, running_agent
from worker.boot_clock import boot_now
from worker.hosts.host_link import HostRefused, HostUnreachable, accepted, connect, interface_of, own_address, receive_exactly
from worker.hosts.host_map import HOSTS_VARIABLE, HostMap, merged
from worker.hosts.host_messages import ANSWERS, RANK_MODULE, Declined, Join, Ping, Start
from worker.hosts.program_versions import program_versions
from worker.node.node_hosts import HostLost, NodeHosts
from worker.settings import SettingsError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[Agent]:
    with running_agent(folder, slots=2) as it:
        yield it


@pytest.fixture
def joined(folder: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[NodeHosts, list[HostLost]]]:
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")  # restored after the test
    lost: list[HostLost] = []
    hosts = NodeHosts(first_host(folder, agent.address), lost.append)
    assert hosts.join(lambda seconds: pytest.fail("the host is there"))
    yield hosts, lost
    hosts.close()


def test_a_node_has_the_devices_of_all_its_hosts(joined, agent):
    hosts, _ = joined
    assert [device.index for device in hosts.devices] == [0, 1, 2]
    assert [hosts.map.host(index).address for index in range(3)] == [None, agent.address, agent.address]
    assert hosts.map.address([2, 1]) == agent.address
    assert hosts.map.address([2, 0]) is None
    assert HostMap.read() == hosts.map, "as executors are told"
    assert abs(hosts.clock_offset(agent.address)) < 5.0, "one machine has one boot clock"
    assert hosts.lacking == {"precision=fp8"}


def test_who_has_another_secret_is_told_so(folder, agent):
    with pytest.raises(SettingsError, match=f"MOTET_WORKER_HOSTS: {agent.address} has another MOTET_WORKER_HOSTS_SECRET"):
        NodeHosts(first_host(folder, agent.address, secret="other-" + "x" * 32), print).join(lambda seconds: True)
    with pytest.raises(SettingsError, match="MOTET_WORKER_HOSTS_SECRET is not set"):
        NodeHosts(first_host(folder, agent.address, secret=None), print).join(lambda seconds: True)


def test_an_agent_starts_nothing_for_who_lacks_the_secret(folder, agent, joined):
    """Who skips the first proof is found out by the first message: a guess at its code, and one that was heard before."""
    link = connect(agent.address, SecretStr(SECRET))
    link._key = b"a guess"
    link.send(Start(module=RANK_MODULE, environment={"RANK": "1"}))
    assert link.socket.recv(1) == b""
    heard = connect(agent.address, SecretStr(SECRET))
    sent = bytearray()
    real = heard.socket

    class Listening:
        def sendall(self, body: bytes) -> None:
            sent.extend(body)
            real.sendall(body)

    heard.socket = Listening()  # type: ignore[assignment]
    heard.send(Join(versions={}, folder=str(folder), probe="none"))
    heard.socket = real
    assert isinstance(heard.receive(ANSWERS), Declined)
    heard.close()
    again = connect(agent.address, SecretStr(SECRET))
    again.socket.sendall(sent)
    assert again.socket.recv(1) == b"", "the nonces are others"
    for one in (link, again):
        one.close()
    assert agent.running(RANK_MODULE) == []


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"motet host 1\n" + b"n" * 32 + b"\xff\xff\xff\xff"])
def test_who_says_something_else_or_nothing_holds_nobody_up(folder, agent, words):
    host, port = agent.address.split(":")
    with closing(socket.create_connection((host, int(port)))) as stranger:
        stranger.sendall(words)
        with closing(connect(agent.address, SecretStr(SECRET))) as link:
            link.send(Join(versions=program_versions(), folder=str(folder), probe="none"))
            answer = link.receive(ANSWERS)
        assert isinstance(answer, Declined)
        assert "MOTET_WORKER_DIR is one folder for all hosts of a node" in answer.why


def test_what_a_host_cannot_be_is_said_at_the_start(folder, agent, monkeypatch):
    monkeypatch.setattr("worker.node.node_hosts.program_versions", lambda: program_versions() | {"torch": "9.9"})
    said = f"it has torch {version('torch')}, and the node's first host 9.9; hosts of a node have equal versions"
    with pytest.raises(SettingsError, match=re.escape(said)):
        NodeHosts(first_host(folder, agent.address), print).join(lambda seconds: True)
    monkeypatch.undo()
    hosts = NodeHosts(first_host(folder, agent.address), print)
    hosts.own = [Device(index=0, type="NVIDIA H200", memory_bytes=1)]
    with pytest.raises(SettingsError, match=r"has cpu, and this host NVIDIA H200; a node's devices are of one type"):
        hosts.join(lambda seconds: True)
    hosts.close()


def test_a_host_that_is_named_twice_is_refused(folder, agent, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    with pytest.raises(ValidationError, match="names a host twice"):
        first_host(folder, agent.address, f" {agent.address}")
    hosts = NodeHosts(first_host(folder, agent.address, agent.address.replace("127.0.0.1", "localhost")), print)
    with pytest.raises(SettingsError, match="is a host that was named before"):
        hosts.join(lambda seconds: True)
    hosts.close()


def test_a_device_there_has_no_more_memory_than_the_node_gives(folder, agent, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    hosts = NodeHosts(first_host(folder, agent.address).model_copy(update={"worker_memory_bytes": 2**20}), print)
    assert hosts.join(lambda seconds: False)
    assert [device.memory_bytes for device in hosts.devices] == [2**20] * 3
    hosts.close()


def test_a_host_belongs_to_one_node(folder, agent, joined):
    other = first_host(folder, agent.address, node="other")
    with pytest.raises(SettingsError, match="it belongs to another node, whose folder is"):
        NodeHosts(other, print).join(lambda seconds: True)
    again = NodeHosts(first_host(folder, agent.address), print)
    assert again.join(lambda seconds: False), "the node itself, started anew, has it again"
    again.close()


def test_a_host_that_is_not_there_yet_is_waited_for(folder, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    stops = iter([False, True])
    address = f"127.0.0.1:{free_port()}"
    hosts = NodeHosts(first_host(folder, address), print)
    assert not hosts.join(lambda seconds: next(stops))
    with pytest.raises(HostUnreachable):
        connect(address, SecretStr(SECRET))


def test_a_host_that_is_lost_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, "{}")
    monkeypatch.setattr("worker.node.node_hosts._PING_SECONDS", 0.05)
    told = threading.Event()
    with running_agent(tmp_path) as agent:
        hosts = NodeHosts(first_host(tmp_path, agent.address), lambda lost: (said.append(lost.why), told.set()))
        said: list[str] = []
        assert hosts.join(lambda seconds: False)
    assert told.wait(60)
    assert agent.address in said[0]
    hosts.close()


def test_an_agent_without_what_it_needs_says_so(tmp_path):
    with pytest.raises(AssertionError, match="MOTET_WORKER_HOSTS_SECRET: Value should have at least 32 items"):
        Agent(tmp_path, secret="short")
    with pytest.raises(AssertionError, match="MOTET_WORKER_LISTEN: must be host:port, where"):
        Agent(tmp_path, MOTET_WORKER_LISTEN="29600")
    with running_agent(tmp_path) as agent, pytest.raises(AssertionError, match="cannot listen at"):
        Agent(tmp_path, MOTET_WORKER_LISTEN=agent.address)


def test_who_dribbles_is_not_waited_for(monkeypatch):
    """The time is for all that is said before the secret is proved, not for each byte."""
    monkeypatch.setattr("worker.hosts.host_link._SECONDS", 0.3)
    ours, its = socket.socketpair(socket.AF_UNIX)
    monkeypatch.setattr("worker.hosts.host_link._keep_alive", lambda end: None)
    stopped = threading.Event()

    def dribble() -> None:
        while not stopped.wait(0.02):
            with suppress(OSError):
                its.sendall(b"m")

    thread = threading.Thread(target=dribble)
    thread.start()
    with closing(ours), closing(its):
        with pytest.raises((HostUnreachable, HostRefused)):
            accepted(ours, "b", SecretStr(SECRET))
        stopped.set()
        thread.join()


def test_an_agent_without_descriptors_goes_on_when_it_has_some_again(tmp_path):
    with running_agent(tmp_path) as agent:
        used = len(os.listdir(f"/proc/{agent.process.pid}/fd"))
        _, most = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (used, most))
        host, port = agent.address.split(":")
        with closing(socket.create_connection((host, int(port)))) as one:
            one.sendall(b"motet host 1\n")
            until = time.monotonic() + 60
            while "no connection can be accepted" not in agent.log.read_text():
                assert time.monotonic() < until
                time.sleep(0.02)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (used + 16, most))
        with closing(connect(agent.address, SecretStr(SECRET))) as link:
            link.send(Ping())
            assert link.socket.recv(1) == b"", "a ping is no beginning, so it is there"


def test_a_process_has_the_nodes_settings_and_its_hosts_others():
    own = {"PATH": "/bin", "MOTET_NODE_NAME": "b", "MOTET_WORKER_SLOTS": "4", "MOTET_WORKER_RECOMPUTE": "true"}
    assert merged(own, {"MOTET_NODE_NAME": "a"}) == {"PATH": "/bin", "MOTET_NODE_NAME": "a", "MOTET_WORKER_SLOTS": "4"}


def test_an_interface_is_found_by_its_address():
    assert own_address("127.0.0.1:9") == "127.0.0.1"
    assert interface_of(["192.0.2.1", "127.0.0.1"]) == "lo"
    assert interface_of(["192.0.2.1"]) is None


def test_a_connection_that_ends_in_a_message_says_so():
    ours, its = socket.socketpair()
    its.sendall(b"ab")
    its.close()
    with closing(ours), pytest.raises(HostUnreachable, match="b closed the connection"):
        receive_exactly(ours, 3, "b")


def test_the_boot_clock_of_a_host_is_told_no_later_than_it_is(joined):
    """A deadline must not be later there than here: what the answer's way took is taken off."""
    hosts, _ = joined
    (host,) = hosts._hosts
    asked = boot_now()
    host._ping()
    assert asked - boot_now() <= host._offsets[-1] <= host.clock_offset <= 0.0
