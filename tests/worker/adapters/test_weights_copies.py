"""Copies of weights: main memory has a budget for them, and files take what it does not hold."""

import os
import resource
import threading
import weakref
from dataclasses import replace

import pytest
import torch

from tests.worker.adapters.adapter_stores import RANK, ROOMY, Store, key, same, trained
from worker.adapters.weights_copies import WeightsCopies, WeightsCopy, _Kept
from worker.data.object_cache import ObjectCache

SIZE = 4 * RANK * 100
PATIENCE = 60.0


def copied(held: list[weakref.ref[torch.Tensor]] | None = None) -> torch.Tensor:
    weights = torch.randn(RANK, 100)
    if held is not None:
        held.append(weakref.ref(weights))
    return weights


def settle(lowest: WeightsCopies) -> None:
    """Wait until no copy waits for its file."""
    with lowest._changed:
        assert lowest._changed.wait_for(lambda: not lowest._waiting, PATIENCE)


@pytest.fixture
def slow_disk(monkeypatch):
    """Writes of another thread than the test's wait for it."""
    go_on, real, own = threading.Event(), WeightsCopies._written, threading.current_thread()

    def written(self, weights):
        assert threading.current_thread() is own or go_on.wait(PATIENCE)
        return real(self, weights)

    monkeypatch.setattr(WeightsCopies, "_written", written)
    yield go_on
    go_on.set()


def test_beyond_its_budget_a_copy_lies_in_a_file_that_has_no_name(tmp_path):
    lowest, was = WeightsCopies("weights", 2 * SIZE, tmp_path), [copied() for _ in range(4)]
    copies = [lowest.keep(lambda weights=weights: weights, SIZE) for weights in was]
    settle(lowest)
    assert [copy.read() is weights for copy, weights in zip(copies, was, strict=True)] == [True, True, False, False]
    for _ in range(2):
        assert all(torch.equal(copy.read(), weights) for copy, weights in zip(copies, was, strict=True))
    assert list(tmp_path.iterdir()) == []
    copies[3].let_go()
    again = lowest.keep(lambda: was[3], SIZE)
    settle(lowest)
    assert again.read() is not was[3], "a file holds no memory that it could give back"
    copies[0].let_go()
    assert lowest.keep(lambda: was[0], SIZE).read() is was[0]


def test_a_copy_that_lies_in_a_file_holds_no_memory(tmp_path):
    held: list[weakref.ref[torch.Tensor]] = []
    lowest = WeightsCopies("weights", SIZE, tmp_path)
    copies = []
    for _ in range(3):
        weights = copied(held)
        copies.append(lowest.keep(lambda weights=weights: weights, SIZE))
    del weights
    settle(lowest)
    assert [ref() is not None for ref in held] == [True, False, False]
    assert all(copy.read().shape == (RANK, 100) for copy in copies)


def test_where_no_file_can_be_written_it_stays_in_memory_and_says_so(small_disk, caplog):
    small_disk.fill()
    lowest, weights = WeightsCopies("weights", 0, small_disk.folder / "own"), copied()
    copy = lowest.keep(lambda: weights, SIZE)
    settle(lowest)
    assert copy.read() is weights
    again = lowest.keep(lambda: weights, SIZE)
    settle(lowest)
    assert caplog.text.count("stay in memory, beyond their part of MOTET_WORKER_PARK_BYTES") == 1, "not with every copy"
    copy.let_go()
    again.let_go()
    assert lowest._bytes_left == 0
    small_disk.free()
    copy = lowest.keep(lambda: weights, SIZE)
    settle(lowest)
    assert copy.read() is not weights


def test_two_thirds_of_the_descriptors_are_left_to_others(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (6, 6))
    lowest, weights = WeightsCopies("weights", 0, tmp_path), copied()
    copies = [lowest.keep(lambda: weights, SIZE) for _ in range(3)]
    settle(lowest)
    assert [copy.read() is weights for copy in copies] == [False, False, True]
    assert "a third of the descriptors" in caplog.text
    copies[0].let_go()
    copies[2].let_go()
    copy = lowest.keep(lambda: weights, SIZE)
    settle(lowest)
    assert copy.read() is not weights


def test_files_are_written_beside_who_keeps(tmp_path, slow_disk):
    lowest, weights = WeightsCopies("weights", 0, tmp_path), copied()
    copy = lowest.keep(lambda: weights, SIZE)
    assert copy.read() is weights, "its file is not written yet"
    slow_disk.set()
    settle(lowest)
    assert copy.read() is not weights
    assert torch.equal(copy.read(), weights)


def test_what_waits_for_its_file_takes_an_eighth_of_the_budget_besides(tmp_path, slow_disk, monkeypatch):
    lowest, weights, found = WeightsCopies("weights", 16 * SIZE, tmp_path), copied(), []
    wait_for = lowest._changed.wait_for

    def watched(has_room):
        found.append(has_room())
        if not found[-1]:
            slow_disk.set()
        return wait_for(has_room)

    monkeypatch.setattr(lowest._changed, "wait_for", watched)
    for _ in range(16 + 3):
        lowest.keep(lambda: weights, SIZE)
    assert found == [True, True, False]
    assert lowest._waiting_bytes <= 2 * SIZE


def test_a_copy_that_is_let_go_before_its_file_is_written_leaves_nothing(tmp_path, slow_disk):
    lowest, weights, written = WeightsCopies("weights", 16 * SIZE, tmp_path), copied(), []
    files = lowest._files_left
    kept = [lowest.keep(lambda: weights, SIZE) for _ in range(16)]
    first = lowest.keep(lambda: weights, SIZE)
    second = lowest.keep(lambda: written.append(1) or weights, SIZE)
    second.let_go()
    first.let_go()
    assert written == [1], "its device was waited for"
    slow_disk.set()
    settle(lowest)
    assert written == [1], "it was not written"
    assert (lowest._files_left, lowest._waiting_bytes, lowest._bytes_left) == (files, 0, 0)
    for copy in kept:
        copy.let_go()
    assert lowest._bytes_left == 16 * SIZE


def test_one_whose_file_comes_as_it_is_let_go_is_not_read(tmp_path, slow_disk, monkeypatch):
    """That file may not be readable, and whoever lets go waits for nobody's disk."""
    lowest, weights, looks, own = WeightsCopies("weights", 0, tmp_path), copied(), [], threading.current_thread()
    files = lowest._files_left

    def looked_at(one, name):
        found, first = object.__getattribute__(one, name), not looks and threading.current_thread() is own
        looks.extend([name] if first else [])
        if first:  # what was found is no longer so
            slow_disk.set()
            settle(lowest)
            ruin_copy(copy)
        return found

    copy = lowest.keep(lambda: weights, SIZE)
    monkeypatch.setattr(_Kept, "__getattribute__", looked_at, raising=False)
    copy.let_go()
    assert looks
    assert (lowest._files_left, lowest._waiting_bytes, lowest._bytes_left) == (files, 0, 0)


@pytest.mark.parametrize("budget", [0, SIZE])
def test_a_copy_that_is_let_go_while_it_is_read_is_given_back_after_that(tmp_path, monkeypatch, budget):
    """Else its descriptor may be another file's by the time that it is read."""
    lowest, weights, begun, go_on, found = WeightsCopies("weights", budget, tmp_path), copied(), *gates(), []
    files, read = lowest._files_left, _Kept.read

    def slow(one):
        begun.set()
        assert go_on.wait(PATIENCE)
        return read(one)

    copy = lowest.keep(lambda: weights, SIZE)
    settle(lowest)
    free = (lowest._files_left, lowest._bytes_left)
    monkeypatch.setattr(_Kept, "read", slow)
    reader = threading.Thread(target=lambda: found.append(copy.read()))
    reader.start()
    assert begun.wait(PATIENCE)
    copy.let_go()
    assert (lowest._files_left, lowest._bytes_left) == free, "it is read yet"
    go_on.set()
    reader.join(PATIENCE)
    assert torch.equal(found[0], weights)
    assert (lowest._files_left, lowest._bytes_left) == (files, budget)


def gates() -> tuple[threading.Event, threading.Event]:
    return threading.Event(), threading.Event()


def test_where_the_system_starts_no_thread_who_keeps_writes(tmp_path, slow_disk, lacking, caplog):
    lacking.add("weights")
    lowest, weights = WeightsCopies("weights", 0, tmp_path), copied()
    copies = [lowest.keep(lambda: weights, SIZE) for _ in range(2)]
    assert all(copy.read() is not weights and torch.equal(copy.read(), weights) for copy in copies)
    assert "all tasks wait while weights are written" in caplog.text


def test_a_lower_loss_takes_the_memory_of_the_highest_of_those_before(trainers, tmp_path, monkeypatch):
    """Else each would lie in a file for a moment, where the budget holds them exactly."""
    files = []
    monkeypatch.setattr(WeightsCopies, "_written", lambda self, weights: files.append(weights))
    size = 4 * RANK * trainers[0].arena.layout.width
    store = Store(trainers, ObjectCache(tmp_path), capacity=replace(ROOMY, lowest_bytes=3 * size))
    trained(store, trainers[0], 1)
    for place in (0, 1, 2, 0, 1, 2):
        store.note_lowest(key(1), place, 3)
    assert len(store.one(key(1)).lowest) == 3
    settle(store.arenas[0]._lowest)
    assert not files


@pytest.mark.parametrize("most", [0, 1, 2])
def test_copies_that_come_back_to_rows_are_counted_again(trainers, tmp_path, most):
    """Of two jobs, each with one: from memory for parked ones, whose budget they give back, and from disk."""
    size = 4 * RANK * trainers[0].arena.layout.width
    for host_bytes in (0, 10**9):
        store = Store(trainers, ObjectCache(tmp_path), host_bytes, capacity=replace(ROOMY, lowest_bytes=most * size))
        was = {job: trained(store, trainers[0], job) for job in (0, 1)}
        for _ in range(2):
            for job in was:
                store.park(key(job))
                store.evict(key(job))
            assert store.arenas[0]._lowest._bytes_left == most * size
            assert store.allocate_rows(0, [key(job) for job in was]) == {}
            assert store.arenas[0]._lowest._bytes_left == 0
            assert all(same(store.one(key(job)), tensors) for job, tensors in was.items())
        for job in was:
            store.remove(key(job))
        assert store.arenas[0]._lowest._bytes_left == most * size


def test_a_job_whose_file_cannot_be_read_is_lost_and_no_other(trainers, tmp_path):
    """What is asked of several jobs at once answers for the others, and what moves adapters goes on."""
    store = Store(trainers, ObjectCache(tmp_path), capacity=replace(ROOMY, lowest_bytes=0))
    was = {job: trained(store, trainers[0], job) for job in (0, 1)}
    settle(store.arenas[0]._lowest)
    ruin(store, 0)
    found = store.tensors(map(key, was))
    assert found[key(0)].lowest == ()
    assert same(found[key(1)], was[1])
    assert store.mean_weights(key(0), 1) is None
    assert store.restore_mean(key(0), 1) is False
    store.park(key(0))
    store.evict(key(0))
    assert store.mean_weights(key(0), 1) is None
    assert list(store.lost) == [key(0)]
    assert store.lost[key(0)].startswith("a file of weights in MOTET_WORKER_DIR cannot be read back: it ends ")
    assert store.told == [key(0)]
    assert torch.equal(store.mean_weights(key(1), 1), was[1].lowest[0])
    store.remove(key(0))
    assert store.lost == {}


def ruin(store: Store, job: int) -> None:
    """Nothing is left in the files of its copies."""
    at = store.location(key(job))
    for copy in store.arenas[at.replica]._held[key(job)].copies:
        ruin_copy(copy)


def ruin_copy(copy: WeightsCopy) -> None:
    os.ftruncate(copy.let_go.args[0].at.io.fileno(), 0)
