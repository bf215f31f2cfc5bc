"""When generation runs a pass: beside training within the share of policy/generation_share.py, otherwise pass after pass; what
memory it may hold then, and that it gives that up where training lacks it.

Both classes have turns of their own, so neither waits for the other's batch to end.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from worker.executor.placement.job_run import JobRun
from worker.policy.generation_memory import PREFILL_TOKENS, room_beside
from worker.policy.generation_share import GenerationClass, GenerationShare
from worker.policy.job_record import JobKey
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import Room, generation_shape

_TRIES = 2  # of evaluations beside the same jobs: the second with half as many texts at once


class GenerationBatch(Protocol):
    """What takes turns."""

    @property
    def tenants(self) -> Collection[str]:
        """Whom it serves now; nobody where it has nothing to run."""
        ...

    @property
    def held_bytes(self) -> int:
        """Of its key-value cache."""
        ...

    def advance(self, replicas: Replicas, room: Room) -> None:
        """Run one pass. room: what the cache may take, where one is to be made."""
        ...

    def give_way(self) -> bool:
        """Free all that it holds; what it was at begins anew or fails. Whether there was anything."""
        ...


class GenerationTurns:
    """share: seconds of generation for each second of training. clock: seconds."""

    def __init__(
        self,
        share: float,
        evaluations: GenerationBatch,
        completions: GenerationBatch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._clock = GenerationShare(share), clock
        self._batches = {GenerationClass.EVALUATIONS: evaluations, GenerationClass.COMPLETIONS: completions}
        self._beside: frozenset[JobKey] = frozenset()  # the jobs that train
        self._gave_way: Counter[frozenset[JobKey]] = Counter()  # how often to these jobs, since others trained

    def trained(self, seconds: float) -> None:
        """A training step took so long."""
        self._share.trained(seconds, {kind: len(batch.tenants) for kind, batch in self._batches.items()})

    def advance(self, replicas: Replicas, runs: Sequence[JobRun]) -> None:
        """Run the passes that are due: while these jobs train, as many as the share allows; where none does, one of each class.
        Evaluations that gave way to the same jobs twice wait until others train, or none; whoever asks is told at once."""
        self._beside = frozenset(run.key for run in runs)
        if self._beside not in self._gave_way:
            self._gave_way.clear()
        for kind, batch in self._batches.items():
            room = partial(self._room, replicas, runs, kind)
            if not runs and batch.tenants:
                batch.advance(replicas, room)
            waits = kind is GenerationClass.EVALUATIONS and self._gave_way[self._beside] >= _TRIES
            while runs and not waits and batch.tenants and self._share.allows(kind):
                began = self._clock()
                batch.advance(replicas, room)
                self._share.generated(kind, self._clock() - began)

    def _room(self, replicas: Replicas, runs: Sequence[JobRun], kind: GenerationClass, sequences: int) -> int:
        others = sum(batch.held_bytes for other, batch in self._batches.items() if other is not kind)
        demands, shape = replicas.on_first([run.demand for run in runs]), generation_shape(replicas.base.trainer)
        return room_beside(demands, replicas.first.capacity, shape, sequences, PREFILL_TOKENS) - others

    def give_way(self) -> bool:
        """Training found no memory: free what generation holds, before a pass of training is made shorter or a job fails.
        Whether there was anything."""
        gave = [batch.give_way() for batch in self._batches.values()]
        self._gave_way[self._beside] += any(gave)
        return any(gave)
