"""Adapters moved about at random between arenas, memory and disk keep their bits, and leave nothing behind."""

from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.worker.adapters.adapter_stores import RANK, ROOMY, Store, key, same, spec
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.location_types import ArenaRows, OnDisk, Unmade
from worker.data.object_cache import ObjectCache


def machine(trainers, scratch: ObjectCache) -> type[RuleBasedStateMachine]:
    """Adapters that are moved about at random between two arenas, memory and disk, beside a dictionary of what they hold."""
    width = trainers[0].arena.layout.width
    jobs = st.integers(0, 4)

    class Moves(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            capacity = replace(ROOMY, lowest_bytes=2 * RANK * width * 4)
            self.store = Store(trainers, scratch, 4 * RANK * width * 4, capacity=capacity)
            self.holds: dict[int, Tensors | None] = {}

        def teardown(self) -> None:
            for job in range(5):
                self.store.remove(key(job))
            assert not any(trainer.arena.slots for trainer in trainers)
            assert list(scratch.folder.iterdir()) == []
            assert all(arena._lowest._bytes_left == 2 * RANK * width * 4 for arena in self.store.arenas)

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
                place = min(place, len(noted), most - 1)
                self.store.note_lowest(key(job), place, most)
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
                assert tensors is None or torch.equal(self.store.weights([key(job)])[key(job)], tensors.adapter.weights)
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
