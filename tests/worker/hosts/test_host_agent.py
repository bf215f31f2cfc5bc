"""An agent for which the system starts no more threads: the processes that it has started go on."""

import socket
import threading

import pytest
from pydantic import SecretStr

from tests.worker.conftest import Lacking
from tests.worker.hosts.running_agent import SECRET
from worker.hosts import host_agent
from worker.hosts.host_agent import HostAgent
from worker.hosts.host_link import HostUnreachable, connect
from worker.hosts.host_messages import ANSWERS, RANK_MODULE, Declined, HostDescription, Start

MANY = host_agent._STRANGERS + 1


def test_who_has_no_thread_is_turned_away_and_others_are_served(lacking: Lacking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_agent, "_PAUSE_SECONDS", 0.0)
    secret = SecretStr(SECRET)
    agent = HostAgent(secret, HostDescription(devices=[], lacking=[], agent="a"), {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
        serving = threading.Thread(target=agent.serve, args=(listener,), daemon=True)
        serving.start()
        lacking.add("connection of")
        for _ in range(MANY):
            with pytest.raises(HostUnreachable):
                connect(address, secret)
        lacking.clear()
        link = connect(address, secret)
        link.send(Start(module=RANK_MODULE, environment={}))
        assert link.receive(ANSWERS) == Declined(why="this host belongs to no node")
        link.close()
        agent.stop(listener)
        serving.join()
