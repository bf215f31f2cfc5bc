"""The adapter store: wherever an adapter lies and however it moves, it is the same bits, and nothing is left behind."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.job_config import MODULES
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.arena_growth import shrink_arena
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors, save
from worker.adapters.location_types import AdapterSpec, ArenaRows, OnDisk, PinnedHost, Unmade
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.data.object_cache import ObjectCache
from worker.model.arena import AdapterState
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobKey, JobProgress
from worker.replicas.base_loader import load_base

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
    return [load_base(tiny_base, torch.device("cpu")).trainer for _ in range(2)]


class Store(AdapterStore):
    """With the arenas of its replicas at hand."""

    def __init__(self, trainers, scratch: ObjectCache, host_bytes: int = 10**9, cache=None, capacity=ROOMY) -> None:
        self.arenas = [ArenaAdapters(trainer, CapacityTracker(capacity)) for trainer in trainers]
        super().__init__(self.arenas, host_bytes, scratch, cache)

    def slot(self, key: JobKey):
        at = self.location(key)
        assert isinstance(at, ArenaRows)
        return self.arenas[at.replica].slot(key)

    def one(self, key: JobKey) -> Tensors:
        return self.tensors([key])[key]


def trained(store: Store, trainer, job: int, replica: int = 0) -> Tensors:
    """A job that has rows, with numbers in all of its buffers; returns these."""
    store.add(key(job), spec(job))
    assert store.allocate_rows(replica, [key(job)]) == {}
    slot = store.slot(key(job))
    trainer.arena.master[slot.used] += 1 + job
    for place, buffer in enumerate(trainer.arena.moments.buffers):
        buffer[slot.used] = 10 * job + place
    store.note_lowest(key(job), 0, 1)
    trainer.arena.master[slot.used] -= 0.5
    return store.one(key(job))


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


def machine(trainers, scratch: ObjectCache) -> type[RuleBasedStateMachine]:
    """Adapters that are moved about at random between two arenas, memory and disk, beside a dictionary of what they hold."""
    width = trainers[0].arena.layout.width
    jobs = st.integers(0, 4)

    class Moves(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = Store(trainers, scratch, 4 * RANK * width * 4)
            self.holds: dict[int, Tensors | None] = {}

        def teardown(self) -> None:
            for job in range(5):
                self.store.remove(key(job))
            assert not any(trainer.arena.slots for trainer in trainers)
            assert list(scratch.folder.iterdir()) == []

        def _trains(self, job: int) -> bool:
            return self.store.trains_on(key(job)) is not None

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
                assert self.store.trains_on(key(job)) == replica
                self.holds[job] = self.holds[job] or self.store.one(key(job))

        @rule(job=jobs, place=st.integers(0, 2), most=st.integers(1, 3))
        def learn(self, job: int, place: int, most: int) -> None:
            if self._trains(job):
                arena = trainers[self.store.trains_on(key(job))].arena
                arena.master[self.store.slot(key(job)).used] += 0.25
                noted = list(self.store.one(key(job)).lowest)
                self.store.note_lowest(key(job), min(place, len(noted)), most)
                noted.insert(place, arena.master[self.store.slot(key(job)).used].clone())
                self.holds[job] = now = self.store.one(key(job))
                assert len(now.lowest) == min(most, len(noted))
                assert all(map(torch.equal, now.lowest, noted))

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
                assert tensors is None or same(self.store.one(key(job)), tensors)
            for replica, trainer in enumerate(trainers):
                here = [job for job, at in places.items() if isinstance(at, ArenaRows) and at.replica == replica]
                assert set(trainer.arena.slots) == {self.store.slot(key(job)) for job in here}
            files = {at.path for at in places.values() if isinstance(at, OnDisk)}
            assert {Path(path) for path in scratch.folder.iterdir()} == files

    return Moves


def test_moved_about_at_random_every_adapter_keeps_its_bits(trainers, tmp_path):
    case = machine(trainers, ObjectCache(tmp_path / "s")).TestCase
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
    case("runTest").runTest()


def test_an_adapter_that_joins_or_leaves_moves_no_buffer_while_there_are_spare_rows(trainers, tmp_path) -> None:
    """Captured graphs know the buffers' addresses."""
    arena = trainers[0].arena
    store = Store(trainers[:1], ObjectCache(tmp_path), capacity=replace(ROOMY, memory_bytes=32 * 10 * 64 * arena.bytes_per_row))
    spare = store.arenas[0].spare_rows
    assert spare > 32

    def join(job: int) -> int:
        store.add(key(job), spec(job), None, None)
        store.allocate_rows(0, [key(job)])
        return arena.master.data_ptr()

    places = [join(job) for job in range(8)]
    assert len(set(places)) <= 4, "it doubles"
    for job in range(7):
        store.remove(key(job))
        assert shrink_arena(trainers[0], spare) == 0
    assert join(9) == places[-1]
    assert shrink_arena(trainers[0]) > 0
    assert arena.rows == arena.rows_used


def test_spare_rows_stay_below_what_the_passes_need(trainers, tmp_path) -> None:
    arena = trainers[0].arena
    base = 10**9
    store = Store(trainers[:1], ObjectCache(tmp_path), capacity=Capacity(MemoryModel(base, 0, 1), base + 2 * 8, 1, margin=1.0))
    assert store.arenas[0].spare_rows > 16
    for job in range(2):
        store.add(key(job), spec(job), None, None)
        store.allocate_rows(0, [key(job)])
    assert arena.rows == arena.rows_used == 16
