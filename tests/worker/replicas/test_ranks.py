"""Ranks without tasks: messages whose tensors lie in shared memory, and processes that end with their parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.worker.fleet import JOIN_TOKEN
from tests.worker.processes import command, gone
from worker.replicas.base_loader import BaseError
from worker.replicas.ranks import rank_process
from worker.replicas.ranks.rank_group import RankGroup, environments
from worker.replicas.ranks.rank_link import LinkClosed, RankLink
from worker.replicas.ranks.rank_start import RankLost
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.settings import Settings


class Ends:
    """Rank 0's end of a link, and a rank's in this process too, which is why both own segments of one pid."""

    def __init__(self) -> None:
        ours, its = socket.socketpair()
        self.ours, self.its = SharedHostMemory(lends=False), SharedHostMemory(lends=True)
        self.root, self.rank = RankLink(ours, self.ours), RankLink(its, self.its)


@pytest.fixture
def ends(monkeypatch):
    """The rank is taken for a process of another pid."""
    made = Ends()
    real = os.getpid()
    monkeypatch.setattr(SharedHostMemory, "pid", property(lambda memory: real + (memory is made.its)))
    return made


def open_descriptors() -> int:
    """Of segments, whatever else this process opens and closes meanwhile."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += "memfd:motet-adapters" in os.readlink(f"/proc/self/fd/{number}")
    return found


def test_a_tensor_arrives_without_a_copy_and_its_segment_is_used_again(ends):
    made = ends.its.empty((3, 4), torch.float32).fill_(1.5)
    ends.rank.send({"weights": made, "more": [made[1], 7]})
    got = ends.root.receive()
    assert torch.equal(got["weights"], torch.full((3, 4), 1.5))
    assert torch.equal(got["more"][0], got["weights"][1])
    made.fill_(2.0)
    assert (got["weights"] == 2.0).all(), "the same memory"
    del made
    held = ends.its.empty((3, 4), torch.float32)
    assert not (held == 2.0).any(), "rank 0 still has the first"
    del got
    ends.its.take_back(ends.ours.take_returned(ends.its.pid))
    again = ends.its.empty((2, 6), torch.float32)
    assert (again == 2.0).all(), "the segment that both gave up"


def test_a_segment_is_sent_once_and_forgotten_when_it_is_trimmed(ends):
    before = open_descriptors()
    for _ in range(5):
        tensor = ends.its.empty((8,), torch.int64).fill_(3)
        ends.rank.send(tensor)
        del tensor
        assert ends.root.receive().sum() == 24
        ends.its.take_back(ends.ours.take_returned(ends.its.pid))
    assert open_descriptors() == before + 4, "one at each end, and one that each mapping holds"
    ends.ours.drop(ends.its.pid, ends.its.trim())
    assert open_descriptors() == before


def test_a_tensor_of_any_memory_may_be_sent_and_is_its_own_copy(ends):
    before = open_descriptors()
    tensor = torch.arange(12.0).view(3, 4).T  # not contiguous
    kept = ends.root.send((tensor, torch.empty(0), torch.tensor(5)))
    got, empty, scalar = ends.rank.receive()
    assert torch.equal(got, tensor)
    assert empty.numel() == 0
    assert scalar.item() == 5
    tensor.zero_()
    assert got.sum() == 66
    del kept, got, empty, scalar
    ends.ours.trim()
    assert open_descriptors() == before, "the receiver keeps no descriptor"


def test_what_rank_0_returns_to_one_rank_it_keeps_for_the_others(ends):
    ends.rank.send(ends.its.empty((2,), torch.float32))
    ends.root.receive()
    assert ends.ours.take_returned(ends.its.pid + 1) == []
    assert ends.ours.take_returned(ends.its.pid) == [1]
    assert ends.ours.take_returned(ends.its.pid) == [], "once for a loan"


def test_a_view_of_shared_memory_arrives_as_it_is_seen(ends):
    made = ends.its.empty((3, 4), torch.float32).copy_(torch.arange(12.0).view(3, 4))
    for view in (made.T, made[:, 1:3], made[1:]):
        ends.rank.send(view)
        assert torch.equal(ends.root.receive(), view)


def test_many_tensors_travel_in_one_message(ends):
    ends.root.send([torch.full((4,), float(number)) for number in range(300)])  # more descriptors than fit beside one byte
    assert [tensor[0].item() for tensor in ends.rank.receive()] == list(range(300))


def test_a_closed_link_says_so(ends):
    assert not ends.root.waits(0)
    ends.rank.close()
    assert ends.root.waits(0)
    with pytest.raises(LinkClosed):
        ends.root.receive()
    with pytest.raises(LinkClosed):
        ends.root.send("hello?")


def test_a_message_is_repeated_until_its_work_is_done(ends):
    """Also where the other end reads nothing, until nobody is left to read."""
    with ends.rank.repeating("alive", 0.01):
        assert [ends.root.receive() for _ in range(3)] == ["alive"] * 3
    ends.rank.send("done")
    while ends.root.receive() == "alive":
        continue
    assert not ends.root.waits(0)
    ends.root.close()
    with ends.rank.repeating("alive", 0.01), pytest.raises(LinkClosed):
        ends.rank.receive()


@pytest.mark.gpu
def test_host_memory_of_a_rank_with_a_gpu_is_pinned(ends):
    ends.its.pin()
    source = torch.randn(64, 1024, device="cuda")
    made = ends.its.empty(source.shape, source.dtype)
    assert made.is_pinned()
    ends.rank.send(made.copy_(source))
    assert torch.equal(ends.root.receive(), source.cpu())
    del made
    ends.its.take_back(ends.ours.take_returned(ends.its.pid))
    assert ends.its.trim() == [1]


PARENT = """
import sys, time
from worker.replicas.ranks.rank_process import RankProcess
from worker.replicas.ranks.rank_group import environments
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
ranks = [RankProcess(has, SharedHostMemory(lends=False), print) for has in environments([None] * 3, {})[1:]]
print(*(rank.pid for rank in ranks), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("path", ["with setpriv", "without"])
def test_ranks_end_with_their_parent(path, tmp_path):
    """Killed by the kernel, stopped or not; and where no tool asks it to, by the end of a pipe."""
    environment = dict(os.environ) if path == "with setpriv" else {**os.environ, "PATH": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if path == "with setpriv":
        while any(command(pid)[:1] != [sys.executable] for pid in pids):
            time.sleep(0.01)  # each asks the kernel for the signal, and then becomes the rank; in between it shows no command
        os.kill(pids[1], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    assert all(gone(pid) for pid in pids)


def test_a_base_that_a_rank_cannot_load_is_refused_with_its_words(tiny_base, tmp_path):
    settings = Settings(api_url="http://nowhere", join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_threads=1)
    group = RankGroup(lambda silent: None)
    with pytest.raises(BaseError, match="precision fp8 takes a GPU of compute capability"):
        group.load(tiny_base.model_copy(update={"precision": "fp8"}), [torch.device("cpu")] * 2, settings)
    loaded = group.load(tiny_base, [torch.device("cpu")] * 2, settings)
    (rank,) = loaded.ranks
    with pytest.raises(BaseError, match="precision fp8"):
        rank.call("load", tiny_base.model_copy(update={"precision": "fp8"}), torch.device("cpu"), 1, settings, None, 1)
    with pytest.raises(FileNotFoundError):
        rank.call("open_stream", "p", Path(tmp_path / "none"))
    assert rank.pid
    group.close()
    assert gone(rank.pid)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_rank_that_hangs_while_a_base_is_loaded_is_lost_whoever_has_a_lease(tiny_base, tmp_path, monkeypatch, loaded):
    """The thread that prepares placements waits for it beside the loop, which reports progress all the while."""
    settings = Settings(api_url="http://nowhere", join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_threads=1)
    pids = list[int]()

    def stop(sentence: str) -> None:
        if not pids and "the others follow" in sentence and not loaded:
            (pid,) = (rank.pid for rank in group._ranks)
            os.kill(pid, signal.SIGSTOP)
            pids.append(pid)

    group, load = RankGroup(lambda silent: None), (tiny_base, [torch.device("cpu")] * 2, settings)
    if loaded:
        (rank,) = group.load(*load).ranks
        os.kill(rank.pid, signal.SIGSTOP)
        pids.append(rank.pid)
    monkeypatch.setattr(rank_process, "_MOST_SILENT_SECONDS", 3.0)
    prepare = partial(rank.call, "open_stream", "p", tmp_path) if loaded else partial(group.load, *load, tell=stop)
    with pytest.raises(RankLost, match=r"rank 1 .* hangs: it has said nothing for \d+ s"):
        prepare()
    assert gone(pids[0])
    group.close()


def test_a_rendezvous_address_that_is_given_stays():
    given = environments([None] * 2, {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"})
    assert given[1] == {
        **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        **{"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"},
    }
    made = environments([None] * 3, {})
    assert {has["MASTER_PORT"] for has in made} == {made[0]["MASTER_PORT"]}
