"""Rows that nobody has: how many an arena keeps, and that they spare moves of its buffers."""

from dataclasses import replace

from tests.worker.adapters.adapter_stores import ROOMY, Store, key, spec
from worker.adapters.arena_growth import shrink_arena
from worker.data.object_cache import ObjectCache
from worker.policy.adapter_memory_model import Capacity, MemoryModel


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
