"""The adapter store: wherever an adapter lies and however it moves, it is the same bits, and nothing is left behind."""

import os

import pytest
import torch

from tests.worker.adapters.adapter_stores import RANK, Store, key, same, spec, trained
from worker.adapters import tiered_adapter_store
from worker.adapters.job_checkpoint import Tensors, save
from worker.adapters.location_types import ArenaRows, OnDisk, PinnedHost
from worker.data.object_cache import ObjectCache
from worker.model.arena import AdapterState
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobProgress


def test_parked_jobs_spill_to_disk_and_come_back(trainers, tmp_path):
    scratch = ObjectCache(tmp_path / "s")
    bytes_each = 4 * RANK * trainers[0].arena.layout.width * 4
    store = Store(trainers, scratch, 2 * bytes_each)
    was = {job: trained(store, trainers[0], job) for job in range(4)}
    for job in was:
        store.park(key(job))
        store.evict(key(job))
    assert [type(store.location(key(job))) for job in was] == [PinnedHost, PinnedHost, OnDisk, OnDisk]
    assert len(list(scratch.folder.iterdir())) == 2, "two fit in memory"
    assert not trainers[0].arena.slots
    for job, tensors in was.items():
        assert same(store.one(key(job)), tensors)
    assert store.allocate_rows(1, [key(job) for job in was]) == {}
    for job, tensors in was.items():
        assert store.location(key(job)).replica == 1
        assert same(store.one(key(job)), tensors), "on another replica"
    assert list(scratch.folder.iterdir()) == []
    for job in (0, 1):
        store.park(key(job))
        store.evict(key(job))
    assert list(scratch.folder.iterdir()) == [], "the memory was given back"


def test_a_fetched_checkpoint_is_a_place_to_wait(trainers, tmp_path):
    scratch = ObjectCache(tmp_path / "s")
    width = trainers[0].arena.layout.width
    was = Tensors(
        AdapterState(*(torch.randn(RANK, width) for _ in range(3))), (torch.randn(RANK, width), torch.randn(RANK, width))
    )
    kept = scratch.keep(lambda path: save(path, JobProgress(step=4), was))
    store = Store(trainers, scratch, 0)
    for job in (0, 1):
        store.add(key(job), spec(), scratch.link(kept.path, f"resumed-{job}"))
    assert same(store.one(key(0)), was)
    assert store.allocate_rows(0, [key(0)]) == {}
    assert same(store.one(key(0)), was)
    assert not (scratch.folder / "resumed-0").exists(), "nobody needs it any more"
    scratch.drop(kept.path.name)
    assert same(store.one(key(1)), was), "of the same checkpoint, whose other name has gone"
    for job in (0, 1):
        store.remove(key(job))
    assert list(scratch.folder.iterdir()) == []


def test_a_parked_job_keeps_its_rows_until_another_needs_them(trainers, tmp_path):
    fits = Capacity(MemoryModel(0, 0, 1), 16, 0, margin=1.0)  # R_cap: 16 rows
    store = Store(trainers, ObjectCache(tmp_path), capacity=fits)
    was = {job: trained(store, trainers[0], job) for job in (0, 1)}
    slots = {job: store.slot(key(job)) for job in was}
    for job in (1, 0):
        store.park(key(job))
    assert store.allocate_rows(0, [key(1)]) == {}
    assert store.slot(key(1)) is slots[1], "nothing was copied"
    store.park(key(1))
    trained(store, trainers[0], 2)
    assert isinstance(store.location(key(0)), PinnedHost), "it was parked first"
    assert isinstance(store.location(key(1)), ArenaRows)
    for job, tensors in was.items():
        assert same(store.one(key(job)), tensors)


def test_a_parked_job_stays_in_memory_while_the_disk_is_full(trainers, small_disk, caplog):
    scratch = ObjectCache(small_disk.folder / "parked")
    store = Store(trainers, scratch, 0)
    was = {job: trained(store, trainers[0], job) for job in range(2)}
    store.park(key(0))
    store.park(key(1))
    small_disk.fill()
    store.evict(key(0))
    assert "stays in memory, beyond MOTET_WORKER_PARK_BYTES" in caplog.text
    small_disk.free()
    store.evict(key(1))
    assert [type(store.location(key(job))) for job in was] == [PinnedHost, OnDisk], "the next one goes to disk again"
    for job, tensors in was.items():
        assert same(store.one(key(job)), tensors)


def test_best_weights_are_given_up_only_once_their_copy_is_through(trainers, tmp_path, monkeypatch):
    """Another copy may take their memory, which a device still writes; who asks for them waits, too."""
    store, awaited = Store(trainers, ObjectCache(tmp_path)), []
    arena = trainers[0].arena

    def begin(slot):
        weights, number = arena.snapshot(slot, moments=False).weights, len(begun)
        begun.append(number)
        return lambda: awaited.append(number) or weights

    begun = []
    trained(store, trainers[0], 1)
    monkeypatch.setattr(arena, "begin_snapshot", begin)
    store.note_lowest(key(1), 0, 1)
    assert (begun, awaited) == ([0], [])
    store.note_lowest(key(1), 0, 1)
    assert (begun, awaited) == ([0, 1], [0])
    assert torch.equal(store.mean_weights(key(1), 1), arena.master[store.slot(key(1)).used])
    assert awaited == [0, 1]
    store.one(key(1))
    assert awaited == [0, 1, 1]
    store.remove(key(1))
    assert awaited == [0, 1, 1, 1]


@pytest.mark.parametrize("where", ["rows", "memory", "disk"])
def test_the_mean_of_the_lowest_is_the_same_wherever_the_job_lies(trainers, tmp_path, where):
    store = Store(trainers, ObjectCache(tmp_path), 0 if where == "disk" else 1 << 30)
    was = trained(store, trainers[0], 1)
    arena = trainers[0].arena
    for place in (1, 0):
        arena.master[store.slot(key(1)).used] += torch.randn(RANK, arena.layout.width)
        store.note_lowest(key(1), place, 3)
    last, first, second = (weights.double() for weights in store.one(key(1)).lowest)
    assert torch.equal(first.float(), was.lowest[0])
    if where != "rows":
        store.park(key(1))
        store.evict(key(1))
    torch.testing.assert_close(store.mean_weights(key(1), 3).double(), (last + first + second) / 3, rtol=1e-6, atol=1e-6)
    assert torch.equal(store.mean_weights(key(1), 1).double(), last)
    assert store.restore_mean(key(1), 3) is (where == "rows"), "only a job that trains"
    if where == "rows":
        assert torch.equal(arena.master[store.slot(key(1)).used], store.mean_weights(key(1), 3))


@pytest.mark.parametrize("where", ["rows", "disk"])
def test_weights_alone_are_copied_without_their_moments(trainers, tmp_path, monkeypatch, where):
    """Texts at a boundary are asked of many jobs at once, and moments are twice as large."""
    store = Store(trainers, ObjectCache(tmp_path), 0)
    was = trained(store, trainers[0], 1)
    if where == "disk":
        store.park(key(1))
        store.evict(key(1))
    read, taken = tiered_adapter_store.load_tensors, []

    def noted(path, bare):
        taken.append(read(path, bare))
        return taken[-1]

    monkeypatch.setattr(trainers[0].arena.moments, "read", None)
    monkeypatch.setattr(tiered_adapter_store, "load_tensors", noted)
    assert torch.equal(store.weights([key(1)])[key(1)], was.adapter.weights)
    assert [list(tensors.named()) for tensors in taken] == ([["weights"]] if where == "disk" else [])


def test_a_job_whose_file_cannot_be_read_is_lost_and_no_other(trainers, tmp_path):
    store = Store(trainers, ObjectCache(tmp_path), 0)
    was = {job: trained(store, trainers[0], job) for job in (0, 1)}
    for job in was:
        store.park(key(job))
        store.evict(key(job))
    os.truncate(store.location(key(0)).path, 100)
    assert store.weights(map(key, was)).keys() == {key(1)}
    assert store.told == [key(0)]
    assert store.lost[key(0)].startswith("the file of its adapter in MOTET_WORKER_DIR cannot be read: ")
    assert store.mean_weights(key(0), 1) is None
    assert store.allocate_rows(0, [key(0), key(1)]) == {}
    assert (store.trains_on(key(0)), store.trains_on(key(1))) == (None, 0)
    assert same(store.one(key(1)), was[1])
    store.remove(key(0))
    assert len(trainers[0].arena.slots) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_that_cannot_be_read_does_not_lose_whom_it_evicted(trainers, tmp_path):
    """The device has rows for one alone."""
    capacity = Capacity(MemoryModel(0, 0, 1), 8, 1, margin=1.0)
    store = Store(trainers[:1], ObjectCache(tmp_path), 0, capacity=capacity)
    was = {}
    for job in (0, 1):
        was[job] = trained(store, trainers[0], job)
        store.park(key(job))
    assert isinstance(store.location(key(0)), OnDisk), "its rows were needed"
    os.truncate(store.location(key(0)).path, 100)
    assert store.allocate_rows(0, [key(0)]) == {}
    assert store.told == [key(0)]
    assert same(store.one(key(1)), was[1])


def test_two_jobs_parked_alike_do_not_share_a_file(trainers, tmp_path):
    store = Store(trainers, ObjectCache(tmp_path), 0)
    for job in (0, 1):
        store.add(key(job), spec(seed=5))
        store.allocate_rows(0, [key(job)])
        store.park(key(job))
        store.evict(key(job))
    was = store.one(key(1))
    store.remove(key(0))
    assert same(store.one(key(1)), was)


def test_what_cannot_be_asked_says_so(trainers, tmp_path):
    store = Store(trainers, ObjectCache(tmp_path))
    store.add(key(3), spec())
    with pytest.raises(ValueError, match="job 3 of placement p has no adapter yet"):
        store.one(key(3))
    with pytest.raises(ValueError, match="job 3 of placement p has no rows to train in"):
        store.note_lowest(key(3), 0, 1)
    assert store.location(key(4)) is None
    store.remove(key(4))
