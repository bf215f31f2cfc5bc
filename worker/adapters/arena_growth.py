"""Makes arena rows for a new adapter: compacts, grows and shrinks the arena within the device's memory. Knows no jobs: a
callback evicts adapters."""

import logging
from collections.abc import Callable
from typing import TypeVar

from worker.model.arena import Arena, Slot, rows_for
from worker.model.out_of_memory import is_out_of_memory
from worker.model.plain.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")


class NoRows(RuntimeError):
    """The device has no memory for the arena rows of an adapter. The message is for the adapter's owner."""


def allocate_slot(trainer: Trainer, rank: int, alpha: float, fill: Callable[[Slot], T]) -> tuple[Slot, T]:
    """Attach a slot and fill it; returns the slot and what `fill` returned. Raises NoRows, with the slot detached again, where
    filling finds no memory."""
    slot = trainer.arena.attach(rank, alpha)
    try:
        filled = fill(slot)
    except (RuntimeError, MemoryError) as error:
        trainer.arena.detach(slot)
        if not is_out_of_memory(error):
            raise
    else:
        return slot, filled
    trainer.release_caches()
    raise _no_rows(trainer, rank)


def make_room(trainer: Trainer, rank: int, wanted: int, cap: int, spare: int, evict: Callable[[], bool]) -> None:
    """Make the arena fit an adapter of this rank: it grows by `wanted` rows, or by fewer where memory is short. It then doubles
    by up to `spare` rows, so that who joins next seldom moves it.

    evict: frees some rows, and returns whether there were any; called before the arena exceeds `cap` rows, and where it cannot
    grow. Raises NoRows.
    """
    arena = trainer.arena
    while not arena.fits(rank):
        if arena.rows - arena.rows_used >= rows_for(rank):
            arena.compact()
        elif arena.rows_used + wanted > cap and evict():
            continue
        elif not _grown(trainer, rows_for(rank), wanted, _spare(arena, wanted, cap, spare)) and not evict():
            raise _no_rows(trainer, rank)


def _spare(arena: Arena, wanted: int, cap: int, spare: int) -> int:
    used = arena.rows_used + wanted
    return max(0, min(spare, used, cap - used))


def shrink_arena(trainer: Trainer, spare: int = 0) -> int:
    """Free the arena's rows beyond those that adapters use and `spare` others. Returns how many there were."""
    arena = trainer.arena
    given = arena.shrink(spare)
    if given:
        trainer.release_caches()
        log.info("adapter arena shrunk by %d rows (%d MiB) to %d rows", given, given * arena.bytes_per_row >> 20, arena.rows)
    return given


def _grown(trainer: Trainer, least: int, wanted: int, spare: int) -> bool:
    """Grow the arena to `wanted` and `spare` free rows; on failure to `wanted`, then halving that down to `least`. Whether it
    grew."""
    arena = trainer.arena
    arena.compact()
    wanted = max(least, wanted)
    tried = wanted + spare
    while True:
        try:
            arena.grow(arena.rows_used + tried)
            return True
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        trainer.release_caches()
        log.warning("no memory for %d arena rows beside the %d that are taken", tried, arena.rows_used)
        if tried == least:
            return False
        tried = wanted if tried > wanted else max(least, tried // 2)


def _no_rows(trainer: Trainer, rank: int) -> NoRows:
    arena, rows = trainer.arena, rows_for(rank)
    row = arena.bytes_per_row / 2**20
    return NoRows(
        f"the device had no memory for the {rows} arena rows of an adapter of rank {rank} ({rows * row:.1f} MiB), beside the "
        f"{arena.rows_used} rows that others have ({arena.rows_used * row:.1f} MiB) and the base; take a lower rank, "
        "moments of 8 bits (MOTET_WORKER_MOMENTS=8bit), or a worker with more memory"
    )
