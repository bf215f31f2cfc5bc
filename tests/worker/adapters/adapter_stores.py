"""Adapter stores over the arenas of small bases, and jobs whose adapters lie there."""

import torch

from contract.job_config import MODULES
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.location_types import AdapterSpec, ArenaRows
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.data.object_cache import ObjectCache
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobKey

RANK = 4
ROOMY = Capacity(MemoryModel(0, 0, 1), 10**9, 4096)


def key(job: int) -> JobKey:
    return JobKey("p", job)


def spec(seed: int = 0) -> AdapterSpec:
    return AdapterSpec(RANK, 8.0, seed, MODULES)


def same(one: Tensors, other: Tensors) -> bool:
    a, b = one.named(), other.named()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Store(AdapterStore):
    """With the arenas of its replicas at hand."""

    def __init__(self, trainers, scratch: ObjectCache, host_bytes: int = 10**9, cache=None, capacity=ROOMY) -> None:
        self.arenas = [ArenaAdapters(trainer, CapacityTracker(capacity), scratch.folder) for trainer in trainers]
        self.told: list[JobKey] = []
        super().__init__(self.arenas, host_bytes, scratch, lambda key, why: self.told.append(key), cache)

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
