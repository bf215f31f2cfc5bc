"""Draws the first weights of new jobs beside what else is prepared for them: it takes the host longer than a step, so it is not
the loop that should."""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from contract.job_config import JobConfig
from worker.adapters.location_types import AdapterSpec
from worker.adapters.warm_start import StartAdapter
from worker.model.arena import Arena, host_tensor

log = logging.getLogger(__name__)

_SHARE = 2  # one part in so many of the memory for parked adapters may hold first weights of all preparations
# One draws 0.2 billion numbers a second; 60 jobs of a search on a base of 1B begin with 0.7 billion. More than four hold up
# what is prepared beside them, and end no sooner: pinning their memory takes a lock.
_THREADS = max(1, min(4, len(os.sched_getaffinity(0)) // 2))


class DrawnBytes:
    """Bytes of first weights that preparations hold at once. From any thread."""

    def __init__(self) -> None:
        self._lock, self._held = threading.Lock(), 0

    def take(self, sizes: Iterable[int], most: int) -> list[int]:
        """Holds as many of the first sizes as half of what is left of `most` has room for, so that there is some for others."""
        with self._lock:
            room, taken = (most - self._held) // 2, list[int]()
            for size in sizes:
                room -= size
                if room < 0:
                    break
                taken.append(size)
            self._held += sum(taken)
            return taken

    def give_back(self, sizes: Iterable[int]) -> None:
        with self._lock:
            self._held -= sum(sizes)


@contextmanager
def first_weights(
    arena: Arena,
    configs: Mapping[int, JobConfig],
    start: StartAdapter | None,
    park_bytes: int,
    at_once: bool = True,
    before_each: Callable[[], None] = lambda: None,
    held: DrawnBytes | None = None,
) -> Iterator[Callable[[], dict[int, Tensor]]]:
    """Within it, threads draw. What is yielded waits for them, and returns float32 [rank, W] by job index, of as many jobs as a
    share of the memory for parked adapters holds. For a GPU they are pinned: the loop's first copies of best weights find that
    memory free again.

    They are held for as long as that: beside the rows of a large file for minutes.

    start: the adapter that all of them start from. park_bytes: of main memory. at_once: else they are drawn when they are
    waited for. before_each: called in the threads before each adapter; what it raises is raised again for who waits. held: by
    all that share the memory.
    """
    pinned, drawing, taken = arena.master.is_cuda, dict[int, Future[Tensor]](), list[int]()
    held = held or DrawnBytes()

    def draw(spec: AdapterSpec) -> Tensor:
        before_each()
        return spec.first_weights(arena.layout, host_tensor(torch.Size((spec.rank, arena.layout.width)), torch.float32, pinned))

    def begin() -> None:
        specs = {index: AdapterSpec.of(config, start) for index, config in configs.items()}
        sizes = (4 * spec.rank * arena.layout.width for spec in specs.values())
        taken.extend(held.take(sizes, park_bytes // _SHARE))
        for index, spec in list(specs.items())[: len(taken)]:
            try:
                drawing[index] = pool.submit(draw, spec)
            except RuntimeError as error:
                log.warning("the training loop draws first weights, since the system starts no more threads: %s", error)
                break

    def drawn() -> dict[int, Tensor]:
        if not at_once:
            begin()
        return {index: one.result() for index, one in drawing.items()}

    pool = ThreadPoolExecutor(_THREADS, "first weights")
    try:
        if at_once:
            begin()
        yield drawn
    finally:
        pool.shutdown(cancel_futures=True)
        held.give_back(taken)
