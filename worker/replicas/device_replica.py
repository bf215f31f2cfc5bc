"""One copy of the base on one device: steps and evaluates its jobs. Assigns none and stops none early.

A pass that finds no memory is repeated in shorter passes, or with recomputation, on this replica alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from worker.adapters.arena_growth import give_back
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.model.arena import Slot
from worker.model.plain.trainer import OutOfMemory
from worker.policy.job_record import JobKey
from worker.policy.memory_model import Capacity
from worker.policy.step_time import PRIOR, StepLoad, StepModel, StepTimes
from worker.replicas.base_loader import Base
from worker.replicas.packed_step import Stepped, advance, refusal
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep, TrainingJob
from worker.replicas.validation_pass import ValidationResult, ValidationSubject, evaluate

T = TypeVar("T")
Tick = Callable[[], None]
_REFIT_STEPS = 16  # measured steps between two fits of the model
_WORTHWHILE = 0.97  # of an endless pass's throughput: longer passes are not sought
Hopeless = dict[JobKey, str]  # jobs that cannot be stepped, for lack of memory or by their own numbers, and why


class Replica:
    """The replica of this number. hand: its own thread; None: it runs in the caller's thread."""

    def __init__(self, number: int, base: Base, fit: CapacityTracker, store: AdapterStore) -> None:
        self.number, self.base, self.fit, self.store = number, base, fit, store
        self.times = StepTimes.empty()  # of this replica's steps
        self._model: StepModel | None = None  # fitted after so many steps
        self._model_at = 0
        self._rounds: dict[str, StepInProgress] = {}  # each task's step under way, or its last one
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
        self._rounds.pop(group, None)
        if self.fit.narrow(group):
            give_back(self.base.trainer)

    @property
    def model(self) -> StepModel:
        """How long its steps take; a guess until some were measured."""
        if self._model is None or self.times.count >= self._model_at + _REFIT_STEPS:
            self._model, self._model_at = self.times.model(), self.times.count
        return self._model or PRIOR

    def stepped(self) -> bool:
        """Record a step that found its memory; whether micro-batches grew just now: again after a failure, or because longer
        ones were found to pay."""
        rows = self.base.trainer.arena.rows
        grew = self.fit.stepped(rows)
        if self.times.count >= _REFIT_STEPS and self.capacity.most_pass_tokens:
            longest = self.model.worthwhile_tokens(_WORTHWHILE, self.capacity.most_pass_tokens)
            grew |= self.fit.lengthen(longest, rows)
        return grew

    def offers(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, StepLoad]:
        """What the next slice of each task's step takes. The step of a job is of this number."""
        return {group: self._round(group, steps).next_slice() for group, steps in self._steps(jobs).items()}

    def under_way(self, group: str) -> bool:
        """Whether the task has run a slice of its step, and not all."""
        known = self._rounds.get(group)
        return known is not None and known.begun and not known.over

    def step(self, jobs: Sequence[tuple[TrainingJob, int]], slices: int | None, tick: Tick) -> tuple[Stepped, Hopeless]:
        """Run the next so many slices (None: all) of the steps that these tasks' jobs take, of this number, without the jobs
        whose update cannot be made or that find no memory."""
        steps = {key: one for some in self._steps(jobs).values() for key, one in some.items()}
        refused = {key: why for key, one in steps.items() if (why := refusal(one)) is not None}
        sound = [key for key in steps if key not in refused]
        stepped, hopeless = self.attempt(sound, lambda left: self._advance([steps[key] for key in left], slices, tick))
        if stepped.passes and not stepped.preferences:  # judging pairs takes time besides
            self.times = self.times.learned(stepped.load, stepped.seconds)
        return stepped, refused | hopeless

    def _advance(self, steps: Sequence[JobStep], slices: int | None, tick: Tick) -> Stepped:
        rounds = [self._round(group, some) for group, some in _by_group(steps).items()]
        try:
            return advance(self.base.trainer, dict.fromkeys(rounds, slices), self.capacity.pass_budget, tick)
        except OutOfMemory:
            for group in _by_group(steps):
                del self._rounds[group]
            raise

    def _steps(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, dict[JobKey, JobStep]]:
        return _by_group([JobStep(job, self._slot(job.key), number) for job, number in jobs])

    def _round(self, group: str, steps: Mapping[JobKey, JobStep]) -> StepInProgress:
        """The task's step under way, or its next one. Where it cannot go on (rows moved, pieces of another size), the gradients
        that it has begun are void, and it begins anew."""
        known, budget = self._rounds.get(group), self.fit.cut(group)
        if known is not None and known.goes_on(steps, budget):
            return known
        if known is not None:
            here = {one.slot for one in steps.values()}
            self.base.trainer.forget([slot for slot in known.slots if slot in here])
        self._rounds[group] = StepInProgress(list(steps.values()), budget)
        return self._rounds[group]

    def examine(
        self, subjects: Mapping[JobKey, ValidationSubject], tick: Tick
    ) -> tuple[Mapping[JobKey, ValidationResult], Hopeless]:
        """Validation losses of these jobs, with their adapters as they are now."""
        found: dict[JobKey, ValidationResult] = {}
        seated = {
            key: replace(subject, slot=self._slot(key), cut=self.fit.cut(key.placement), owner=key.placement)
            for key, subject in subjects.items()
        }

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


def _by_group(steps: Sequence[JobStep]) -> dict[str, dict[JobKey, JobStep]]:
    """The steps of each task, in their order."""
    groups: dict[str, dict[JobKey, JobStep]] = {}
    for one in steps:
        groups.setdefault(one.job.key.placement, {})[one.job.key] = one
    return groups
