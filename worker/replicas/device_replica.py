"""One copy of the base on one device: steps and evaluates its jobs. Assigns none and judges none.

A pass that finds no memory is repeated in shorter passes, or with recomputation, on this replica alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from worker.adapters.adapter_store import AdapterStore
from worker.adapters.arena_growth import give_back
from worker.adapters.memory_fit import MemoryFit
from worker.model.arena import Slot
from worker.model.plain.trainer import OutOfMemory
from worker.policy.admission import Capacity
from worker.policy.job_record import JobKey
from worker.replicas.base_loader import Base
from worker.replicas.packed_step import Stepped, refusal, step
from worker.replicas.training_job import JobStep, TrainingJob
from worker.replicas.validation_pass import ValidationResult, ValidationSubject, evaluate

T = TypeVar("T")
Tick = Callable[[], None]
Hopeless = dict[JobKey, str]  # jobs that cannot be stepped, for lack of memory or by their own numbers, and why


class Replica:
    """The replica of this number. hand: its own thread; None: it runs in the caller's thread."""

    def __init__(self, number: int, base: Base, fit: MemoryFit, store: AdapterStore) -> None:
        self.number, self.base, self.fit, self.store = number, base, fit, store
        share = (torch.get_num_threads(),)  # of the cores: torch counts threads per thread, so the new one needs the same count
        self.hand = ThreadPoolExecutor(1, "replica", torch.set_num_threads, share) if number else None

    @property
    def capacity(self) -> Capacity:
        return self.fit.capacity

    @property
    def empty(self) -> bool:
        """Whether the arena holds no adapter."""
        return not self.base.trainer.arena.slots

    def narrow(self, group: str) -> None:
        """A task has left, and holds nothing here: shrink the arena to the rows in use."""
        if self.fit.narrow(group):
            give_back(self.base.trainer)

    def stepped(self) -> bool:
        """Record a step that found its memory; whether micro-batches grew just now."""
        return self.fit.stepped(self.base.trainer.arena.rows)

    def step(self, jobs: Sequence[tuple[TrainingJob, int]], tick: Tick) -> tuple[Stepped, Hopeless]:
        """One optimizer step of each of these jobs, of this number, without those whose update cannot be made or that find no
        memory."""
        steps = {job.key: JobStep(job, self._slot(job.key), number) for job, number in jobs}
        refused = {key: why for key, one in steps.items() if (why := refusal(one)) is not None}
        sound = [key for key in steps if key not in refused]
        trainer = self.base.trainer
        stepped, hopeless = self.attempt(
            sound, lambda left: step(trainer, [steps[key] for key in left], self.capacity.step_tokens, tick)
        )
        return stepped, refused | hopeless

    def examine(
        self, subjects: Mapping[JobKey, ValidationSubject], tick: Tick
    ) -> tuple[Mapping[JobKey, ValidationResult], Hopeless]:
        """Validation losses of these jobs, with their adapters as they are now."""
        found: dict[JobKey, ValidationResult] = {}
        seated = {key: replace(subject, slot=self._slot(key)) for key, subject in subjects.items()}

        def go_on(left: Sequence[JobKey]) -> None:
            wanted = {key: seated[key] for key in left if key not in found}
            for key, result in evaluate(self.base.trainer, wanted, self.capacity.step_tokens, tick):
                found[key] = result

        _, hopeless = self.attempt(list(subjects), go_on)
        return found, {key: why for key, why in hopeless.items() if key not in found}

    def attempt(self, jobs: Sequence[JobKey], work: Callable[[list[JobKey]], T]) -> tuple[T, Hopeless]:
        """Run `work` for these jobs, with shorter passes or recomputed activations where the device had no memory, and without
        the jobs for which that is not enough."""
        hopeless: Hopeless = {}
        while True:
            left = [key for key in jobs if key not in hopeless]
            try:
                return work(left), hopeless
            except OutOfMemory as error:
                hopeless |= self._tighten(error, left)

    def _slot(self, key: JobKey) -> Slot:
        rows = self.store.rows(key)
        assert rows is not None, "only jobs with rows train and are evaluated"
        return rows.slot

    def _tighten(self, error: OutOfMemory, jobs: Sequence[JobKey]) -> Hopeless:
        """Handle a pass of these jobs that found no memory: voids their gradients. Returns those that cannot run."""
        trainer = self.base.trainer
        trainer.forget([rows.slot for key in jobs if (rows := self.store.rows(key)) is not None])
        return self.fit.tighten(error, jobs, trainer.arena.rows)
