"""Rank 0's end of a rank whose own end this process plays: whose silence ends it, and what calls and answers carry."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from worker.policy.activations import Activations
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.replicas.ranks import rank_process
from worker.replicas.ranks.rank_link import RankLink
from worker.replicas.ranks.rank_messages import Call, CallResult, PassDone, ReplicaState, StepsDone
from worker.replicas.ranks.rank_process import RankProcess
from worker.replicas.ranks.rank_start import RankLost
from worker.replicas.ranks.shared_host_memory import SharedHostMemory

CAPACITY = Capacity(MemoryModel(0, 0, 1), 10**9, 4096)


class Played:
    """In the place of LocalRank."""

    def __init__(self, environment: Any, memory: SharedHostMemory) -> None:
        ours, its = socket.socketpair()
        self.link, self.end = RankLink(ours, memory), RankLink(its, SharedHostMemory(lends=True))
        self.pid = self.owner = os.getpid() + 1
        self.name, self.ended = "played", False

    def kill(self) -> None:
        self.ended = True


class Rank:
    def __init__(self) -> None:
        self.silences, self.memory = list[float](), SharedHostMemory(lends=False)
        self.process = RankProcess({"RANK": "1"}, self.memory, self.silences.append)
        self.played: Any = self.process._process
        self.end = self.played.end

    def answers(self, result: object = None, dropped: list[int] | None = None, **state: Any) -> Call:
        """It answers the next call, which is returned."""
        call: Call = self.end.receive()
        self.end.send(CallResult(result, ReplicaState(**state), dropped or []))
        return call


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made = [1000.0]
    monkeypatch.setattr(rank_process, "boot_now", lambda: made[0])
    return made


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(rank_process, "LocalRank", Played)
    made = Rank()
    yield made
    made.played.link.close()
    made.end.close()


def test_a_rank_that_is_silent_in_a_call_without_passes_is_ended(rank: Rank, now: list[float]) -> None:
    rank.process.begin("load")
    assert not rank.process.answers_within(0)
    now[0] += 599
    assert not rank.process.answers_within(0)
    now[0] += 1
    with pytest.raises(RankLost, match="hangs: it has said nothing for 600 s"):
        rank.process.answers_within(0)
    assert rank.played.ended, "its answer would be taken for another call's"
    assert rank.silences == [0, 599]


def test_passes_take_as_long_as_the_leases_let_them(rank: Rank, now: list[float]) -> None:
    passes = []
    rank.process.begin("steps", on_progress=lambda: passes.append(now[0]))
    assert not rank.process.answers_within(0)
    now[0] += 5000
    assert not rank.process.answers_within(0)
    rank.end.send(PassDone())
    assert not rank.process.answers_within(0)
    assert (rank.silences, passes, rank.played.ended) == ([0, 5000, 0], [6000], False)


def test_silence_is_counted_from_the_call_under_way(rank: Rank, now: list[float]) -> None:
    result = rank.process.begin("load")
    rank.answers()
    result()
    now[0] += 5000
    rank.process.begin("start")
    assert not rank.process.answers_within(0)
    assert rank.silences == [0]


def test_steps_that_were_told_are_those_of_the_call_under_way(rank: Rank) -> None:
    result = rank.process.begin("steps", on_progress=lambda: None)
    first = rank.process.taken
    rank.end.send(StepsDone(["a"]))
    rank.end.send(StepsDone(["b"]))
    rank.answers(["c"])
    assert result() == ["c"]
    rank.process.begin("steps", on_progress=lambda: None)
    assert (first, rank.process.taken) == (["a", "b"], [])


def test_segments_that_a_rank_dropped_are_unmapped(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = []
    monkeypatch.setattr(rank.memory, "drop", lambda owner, numbers=None: dropped.append((owner, numbers)))
    result = rank.process.begin("free")
    rank.answers(dropped=[3, 4])
    result()
    assert dropped == [(rank.played.owner, [3, 4])]


def test_rows_that_are_freed_lift_the_limit_that_a_lack_of_memory_set(rank: Rank) -> None:
    rank.process.note_freed_rows()  # it has not started
    result = rank.process.begin("allocate")
    rank.answers(capacity=replace(CAPACITY, most_rows=16))
    result()
    assert rank.process.state.capacity == replace(CAPACITY, most_rows=16)
    rank.process.note_freed_rows()
    assert rank.process.state.capacity == CAPACITY


def test_activations_that_change_at_one_end_are_told_the_other_once(rank: Rank) -> None:
    shared = Activations(False, "they fit")
    rank.process.follow("p", shared)

    def call(now: Activations) -> dict[str, Activations]:
        """The activations that the call tells, to a rank whose answer tells these."""
        result = rank.process.begin("steps")
        said = rank.answers(activations={"p": now})
        result()
        return dict(said.activations)

    kept, here, there = replace(shared), Activations(True, "here"), Activations(True, "there")
    assert call(kept) == {}
    shared.copy_from(here)
    rank.process.post("refer")
    assert rank.end.receive().activations == {"p": here}
    assert call(here) == {}
    assert call(there) == {}
    assert shared == there, "the loop's own object"
    assert call(there) == {}, "it is not told what it said"
    rank.process.follow("p", None)
    assert call(kept) == {}
    assert shared == there
