"""The adapter store: wherever an adapter lies and however it moves, it is the same bits, and nothing is left behind."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.search_space import MODULES
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors, save
from worker.adapters.location_types import AdapterSpec, ArenaRows, OnDisk, PinnedHost, Unmade
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.data.object_cache import ObjectCache
from worker.model.arena import AdapterState
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobKey, JobProgress
from worker.replicas.base_loader import load_bases

RANK = 4
ROOMY = Capacity(MemoryModel(0, 0, 1), 10**9, 4096)


def key(job: int) -> JobKey:
    return JobKey("p", job)


def spec(seed: int = 0) -> AdapterSpec:
    return AdapterSpec(RANK, 8.0, seed, MODULES)


def same(one: Tensors, other: Tensors) -> bool:
    a, b = one.named(), other.named()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def trainers(tiny_base):
    return [base.trainer for base in load_bases(tiny_base, [torch.device("cpu")] * 2)]


def store_of(trainers, scratch: ObjectCache, host_bytes: int = 10**9, cache=None) -> AdapterStore:
    return AdapterStore(trainers, [CapacityTracker(ROOMY) for _ in trainers], host_bytes, scratch, cache)


def trained(store: AdapterStore, trainer, job: int, replica: int = 0) -> Tensors:
    """A job that has rows, with numbers in all of its buffers; returns these."""
    store.add(key(job), spec(job))
    assert store.allocate_rows(replica, [key(job)]) == {}
    slot = store.rows(key(job)).slot
    trainer.arena.master[slot.used] += 1 + job
    for place, buffer in enumerate(trainer.arena.moments.buffers):
        buffer[slot.used] = 10 * job + place
    store.note_best(key(job))
    trainer.arena.master[slot.used] -= 0.5
    return store.tensors(key(job))


def test_parked_jobs_spill_to_disk_and_come_back(trainers, tmp_path):
    scratch = ObjectCache(tmp_path / "s")
    bytes_each = 4 * RANK * trainers[0].arena.layout.width * 4
    store = store_of(trainers, scratch, 2 * bytes_each)
    was = {job: trained(store, trainers[0], job) for job in range(4)}
    for job in was:
        store.park(key(job))
        store.evict(key(job))
    assert [type(store.location(key(job))) for job in was] == [PinnedHost, PinnedHost, OnDisk, OnDisk]
    assert len(list(scratch.folder.iterdir())) == 2, "two fit in memory"
    assert not trainers[0].arena.slots
    for job, tensors in was.items():
        assert same(store.tensors(key(job)), tensors)
    assert store.allocate_rows(1, [key(job) for job in was]) == {}
    for job, tensors in was.items():
        assert store.location(key(job)).replica == 1
        assert same(store.tensors(key(job)), tensors), "on another replica"
    assert list(scratch.folder.iterdir()) == []
    for job in (0, 1):
        store.park(key(job))
        store.evict(key(job))
    assert list(scratch.folder.iterdir()) == [], "the memory was given back"


def test_a_fetched_checkpoint_is_a_place_to_wait(trainers, tmp_path):
    scratch = ObjectCache(tmp_path / "s")
    width = trainers[0].arena.layout.width
    was = Tensors(AdapterState(*(torch.randn(RANK, width) for _ in range(3))), torch.randn(RANK, width))
    kept = scratch.keep(lambda path: save(path, JobProgress(step=4), was))
    store = store_of(trainers, scratch, 0)
    store.add(key(0), spec(), kept.path)
    assert same(store.tensors(key(0)), was)
    assert store.allocate_rows(0, [key(0)]) == {}
    assert same(store.tensors(key(0)), was)
    store.remove(key(0))
    assert kept.path.exists(), "it is the service's checkpoint still"


def test_a_parked_job_keeps_its_rows_until_another_needs_them(trainers, tmp_path):
    fits = [CapacityTracker(Capacity(MemoryModel(0, 0, 1), 16, 0, margin=1.0)) for _ in trainers]  # R_cap: 16 rows
    store = AdapterStore(trainers, fits, 10**9, ObjectCache(tmp_path))
    was = {job: trained(store, trainers[0], job) for job in (0, 1)}
    slots = {job: store.rows(key(job)).slot for job in was}
    for job in (1, 0):
        store.park(key(job))
    assert store.allocate_rows(0, [key(1)]) == {}
    assert store.rows(key(1)).slot is slots[1], "nothing was copied"
    store.park(key(1))
    trained(store, trainers[0], 2)
    assert isinstance(store.location(key(0)), PinnedHost), "it was parked first"
    assert isinstance(store.location(key(1)), ArenaRows)
    for job, tensors in was.items():
        assert same(store.tensors(key(job)), tensors)


def test_a_parked_job_stays_in_memory_while_the_disk_is_full(trainers, small_disk, caplog):
    scratch = ObjectCache(small_disk.folder / "parked")
    store = store_of(trainers, scratch, 0)
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
        assert same(store.tensors(key(job)), tensors)


def test_two_jobs_parked_alike_do_not_share_a_file(trainers, tmp_path):
    store = store_of(trainers, ObjectCache(tmp_path), 0)
    for job in (0, 1):
        store.add(key(job), spec(seed=5))
        store.allocate_rows(0, [key(job)])
        store.park(key(job))
        store.evict(key(job))
    was = store.tensors(key(1))
    store.remove(key(0))
    assert same(store.tensors(key(1)), was)


def test_what_cannot_be_asked_says_so(trainers, tmp_path):
    store = store_of(trainers, ObjectCache(tmp_path))
    store.add(key(3), spec())
    with pytest.raises(ValueError, match="job 3 of placement p has no adapter yet"):
        store.tensors(key(3))
    with pytest.raises(ValueError, match="job 3 of placement p has no rows to train in"):
        store.note_best(key(3))
    assert store.location(key(4)) is None
    store.remove(key(4))


def machine(trainers, scratch: ObjectCache) -> type[RuleBasedStateMachine]:
    """Adapters that are moved about at random between two arenas, memory and disk, beside a dictionary of what they hold."""
    width = trainers[0].arena.layout.width
    jobs = st.integers(0, 4)

    class Moves(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = store_of(trainers, scratch, 4 * RANK * width * 4)
            self.holds: dict[int, Tensors | None] = {}

        def teardown(self) -> None:
            for job in range(5):
                self.store.remove(key(job))
            assert not any(trainer.arena.slots for trainer in trainers)
            assert list(scratch.folder.iterdir()) == []

        def _trains(self, job: int) -> bool:
            return self.store.rows(key(job)) is not None

        @rule(job=jobs)
        def add(self, job: int) -> None:
            if job not in self.holds:
                self.store.add(key(job), spec(job))
                self.holds[job] = None

        @rule(some=st.sets(jobs, min_size=1), replica=st.integers(0, 1))
        def allocate_rows(self, some: set[int], replica: int) -> None:
            chosen = [job for job in some if job in self.holds and not self._trains(job)]
            assert self.store.allocate_rows(replica, [key(job) for job in chosen]) == {}
            for job in chosen:
                assert self.store.rows(key(job)).replica == replica
                self.holds[job] = self.holds[job] or self.store.tensors(key(job))

        @rule(job=jobs)
        def learn(self, job: int) -> None:
            if self._trains(job):
                at = self.store.rows(key(job))
                trainers[at.replica].arena.master[at.slot.used] += 0.25
                self.store.note_best(key(job))
                self.holds[job] = self.store.tensors(key(job))

        @rule(job=jobs)
        def park(self, job: int) -> None:
            if self._trains(job):
                self.store.park(key(job))

        @rule(job=jobs)
        def evict(self, job: int) -> None:
            if job in self.holds and not self._trains(job):
                self.store.evict(key(job))

        @rule(replica=st.integers(0, 1))
        def compact(self, replica: int) -> None:
            trainers[replica].arena.shrink()

        @rule(job=jobs)
        def remove(self, job: int) -> None:
            self.store.remove(key(job))
            self.holds.pop(job, None)

        @invariant()
        def nothing_changed_and_nothing_is_left_behind(self) -> None:
            places = {job: self.store.location(key(job)) for job in range(5)}
            assert {job for job, at in places.items() if at is not None} == self.holds.keys()
            for job, tensors in self.holds.items():
                assert (tensors is None) == isinstance(places[job], Unmade)
                assert tensors is None or same(self.store.tensors(key(job)), tensors)
            for replica, trainer in enumerate(trainers):
                here = {at.slot for at in places.values() if isinstance(at, ArenaRows) and at.replica == replica}
                assert set(trainer.arena.slots) == here
            files = {at.path for at in places.values() if isinstance(at, OnDisk)}
            assert {Path(path) for path in scratch.folder.iterdir()} == files

    return Moves


def test_moved_about_at_random_every_adapter_keeps_its_bits(trainers, tmp_path):
    case = machine(trainers, ObjectCache(tmp_path / "s")).TestCase
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    case("runTest").runTest()
