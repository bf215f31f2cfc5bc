"""When generation runs a pass: beside training within the share of policy/generation_share.py, otherwise pass after pass.

Both classes have turns of their own, so neither waits for the other's batch to end.
"""

import time
from collections.abc import Callable, Collection
from typing import Protocol

from worker.policy.generation_share import GenerationClass, GenerationShare
from worker.replicas.replica_set import Replicas


class GenerationBatch(Protocol):
    """What takes turns."""

    @property
    def tenants(self) -> Collection[str]:
        """Whom it serves now; nobody where it has nothing to run."""
        ...

    def advance(self, replicas: Replicas) -> None:
        """Run one pass."""
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

    def trained(self, seconds: float) -> None:
        """A training step took so long."""
        self._share.trained(seconds, {kind: len(batch.tenants) for kind, batch in self._batches.items()})

    def advance(self, replicas: Replicas, training: bool) -> None:
        """Run the passes that are due: while jobs train, as many as the share allows; else one of each class."""
        for kind, batch in self._batches.items():
            if not training and batch.tenants:
                batch.advance(replicas)
            while training and batch.tenants and self._share.allows(kind):
                began = self._clock()
                batch.advance(replicas)
                self._share.generated(kind, self._clock() - began)
