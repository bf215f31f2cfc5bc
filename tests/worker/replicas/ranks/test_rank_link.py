"""The link between hosts, whose messages hold their tensors, and messages that are repeated."""

import socket

import torch

from tests.worker.conftest import Lacking
from worker.replicas.ranks.rank_link import HostRankLink


def test_between_hosts_a_tensor_of_any_memory_arrives_as_it_is_seen() -> None:
    ours, its = (HostRankLink(end) for end in socket.socketpair())
    rows = torch.arange(12.0).view(3, 4)
    sent = [rows.T, rows[:, 1:3], rows.bfloat16()[1:], torch.empty(0, 3), torch.tensor(5)]
    assert ours.send(sent) == [], "none of them must live on"
    got = its.receive()
    assert [(each.dtype, each.shape) for each in got] == [(each.dtype, each.shape) for each in sent]
    assert all(torch.equal(*pair) for pair in zip(got, sent, strict=True))
    for end in (ours, its):
        end.close()


def test_nothing_is_repeated_before_its_time() -> None:
    ours, its = (HostRankLink(end) for end in socket.socketpair())
    with ours.repeating("alive", 3600):
        early = its.waits(0.05)
        its.close()
    assert not early
    ours.close()


def test_what_cannot_be_repeated_for_want_of_a_thread_is_sent_when_that_is_asked_for(lacking: Lacking) -> None:
    ours, its = (HostRankLink(end) for end in socket.socketpair())
    with ours.repeating("alive", 3600) as say:
        say()
    assert not its.waits(0)
    lacking.add("link")
    with ours.repeating("alive", 0) as say:
        assert not its.waits(0)
        say()
    assert its.receive() == "alive"
    for end in (ours, its):
        end.close()
