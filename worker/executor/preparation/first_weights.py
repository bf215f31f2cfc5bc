"""Draws the first weights of new jobs beside what else is prepared for them: it takes the host longer than a step, so it is not
the loop that should."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from contract.job_config import JobConfig
from worker.adapters.location_types import AdapterSpec
from worker.adapters.warm_start import StartAdapter
from worker.model.arena import Arena, host_tensor

_SHARE = 4  # one part in so many of the memory for parked adapters may hold first weights
# One draws 0.2 billion numbers a second; 60 jobs of a search on a base of 1B begin with 0.7 billion. More than four hold up
# what is prepared beside them, and end no sooner: pinning their memory takes a lock.
_THREADS = max(1, min(4, len(os.sched_getaffinity(0)) // 2))


@contextmanager
def first_weights(
    arena: Arena,
    configs: Mapping[int, JobConfig],
    start: StartAdapter | None,
    park_bytes: int,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[], dict[int, Tensor]]]:
    """Within it, threads draw. What is yielded waits for them, and returns float32 [rank, W] by job index, of as many jobs as a
    share of the memory for parked adapters holds. For a GPU they are pinned: the loop's first copies of best weights find that
    memory free again.

    start: the adapter that all of them start from. park_bytes: of main memory. before_each: called in the threads before each
    adapter; what it raises is raised again for who waits.
    """
    pinned, drawing, most_bytes = arena.master.is_cuda, dict[int, Future[Tensor]](), park_bytes // _SHARE

    def draw(spec: AdapterSpec) -> Tensor:
        before_each()
        return spec.first_weights(arena.layout, host_tensor(torch.Size((spec.rank, arena.layout.width)), torch.float32, pinned))

    pool = ThreadPoolExecutor(_THREADS, "first weights")
    try:
        for index, config in configs.items():
            spec = AdapterSpec.of(config, start)
            most_bytes -= 4 * spec.rank * arena.layout.width
            if most_bytes >= 0:
                drawing[index] = pool.submit(draw, spec)
        yield lambda: {index: drawn.result() for index, drawn in drawing.items()}
    finally:
        pool.shutdown(cancel_futures=True)
