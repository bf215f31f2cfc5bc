"""One copy of the base on one device: steps and evaluates its jobs. Assigns none and stops none early.

A pass that finds no memory is repeated in shorter passes, or with recomputation, on this replica alone.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.arena_growth import shrink_arena
from worker.adapters.capacity_tracker import CapacityTracker
from worker.model.plain.trainer import OutOfMemory, Trainer
from worker.policy.activations import Need
from worker.policy.adapter_memory_model import Capacity
from worker.policy.job_record import JobKey
from worker.policy.step_pace import StepPace
from worker.policy.step_time import StepLoad, StepModel
from worker.replicas.failed_passes import FailedPasses
from worker.replicas.packed_step import Launched, Stepped, launch, update_refusal
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep, TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult, evaluate

log = logging.getLogger(__name__)

T = TypeVar("T")
OnProgress = Callable[[], None]
_THROUGHPUT_SHARE = 0.97  # of an endless pass's throughput: longer passes are not sought
# of steps that a device is given before it is through with an earlier one, so that it works while its host captures a pass,
# which takes 35 to 50 ms, longer than most passes that are captured; and how many at most
_AHEAD_SECONDS, _AHEAD_STEPS = 0.1, 8
StepsInAll = Callable[[int, Sequence[Stepped]], int]  # with how many steps were begun, and those whose losses are read
Pending = Callable[[], T]  # work that has begun, or begins when its result is asked for
Unrunnable = dict[JobKey, str]  # jobs that cannot be stepped, for lack of memory or by their own numbers, and why


class Replica:
    """`adapters`: those in its arena. scratch: a folder for copies of these that main memory is not to hold. give_way: frees
    what others than jobs hold on the device; whether there was anything. failed: of a sharded base, where passes that found no
    memory are remembered."""

    def __init__(
        self,
        trainer: Trainer,
        tracker: CapacityTracker,
        scratch: Path,
        give_way: Callable[[], bool] = lambda: False,
        failed: FailedPasses | None = None,
    ) -> None:
        self.trainer, self.tracker, self.give_way, self._failed = trainer, tracker, give_way, failed
        self.adapters = ArenaAdapters(trainer, tracker, scratch)
        self._pace = StepPace()
        self._steps_in_progress: dict[str, StepInProgress] = {}  # each task's step under way, or its last one

    @property
    def capacity(self) -> Capacity:
        return self.tracker.capacity

    @property
    def empty(self) -> bool:
        """Whether the arena holds no adapter."""
        return not self.trainer.arena.slots

    def add_placement(self, placement: str, need: Need) -> None:
        """Add a task, with what it needs here."""
        self.tracker.add_placement(placement, need)

    def add_jobs(self, jobs: Sequence[TrainingJob]) -> None:
        """For a rank, which is told its jobs; here each call brings its own."""

    def remove_placement(self, placement: str) -> None:
        """A task has left, and holds nothing here: the arena keeps few free rows."""
        self._steps_in_progress.pop(placement, None)
        if self.tracker.remove_placement(placement):
            shrink_arena(self.trainer, self.adapters.spare_rows)

    @property
    def alone_model(self) -> StepModel:
        """How long a task's step takes alone."""
        return self._pace.alone_model

    def _grew(self) -> bool:
        """After a step that found its memory: whether micro-batches grew just now, again after a failure, or because longer
        ones were found to pay."""
        rows = self.trainer.arena.rows
        grew = self.tracker.record_step(rows)
        if self._pace.known and self.capacity.most_pass_tokens:
            longest = self._pace.model.tokens_for_throughput_share(_THROUGHPUT_SHARE, self.capacity.most_pass_tokens)
            grew |= self.tracker.lengthen(longest, rows)
        return grew

    def next_slice_costs(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, StepLoad]:
        """What the next slice of each task's step takes. jobs: each with the number of its step."""
        return {
            placement: self._step_in_progress(placement, steps).next_slice()
            for placement, steps in self._job_steps(jobs).items()
        }

    def in_one_slice(self, jobs: Sequence[tuple[TrainingJob, int]]) -> bool:
        """Whether the next slice of each task's step is its whole step. jobs: each with the number of its step."""
        return all(self._step_in_progress(key, steps).is_one_slice for key, steps in self._job_steps(jobs).items())

    def under_way(self, placement: str) -> bool:
        """Whether the task has run a slice of its step, and not all."""
        known = self._steps_in_progress.get(placement)
        return known is not None and known.started and not known.done

    def begin_steps(
        self,
        jobs: Sequence[tuple[TrainingJob, int]],
        slices: int | None,
        count: int,
        on_progress: OnProgress,
        in_all: StepsInAll | None = None,
    ) -> Pending[tuple[list[Stepped], Unrunnable]]:
        """Begin the next so many slices (None: all) of these tasks' steps, `count` times. jobs: each with the number of its
        first step. in_all: asked between two steps how many it will be. Here they run when the caller asks for the result. That
        leaves out jobs whose update cannot be made or that find no memory, and says why; one whose loss is not finite stops."""
        return lambda: self._steps(jobs, slices, count, on_progress, in_all or (lambda begun, taken: count))

    def begin_evaluation(
        self, requests: Mapping[JobKey, EvaluationRequest], on_progress: OnProgress
    ) -> Pending[tuple[dict[JobKey, ValidationResult], Unrunnable]]:
        """Validation losses of these jobs with their adapters as they are now, once the result is asked for."""
        return lambda: self._evaluate(requests, on_progress)

    def _steps(
        self,
        jobs: Sequence[tuple[TrainingJob, int]],
        slices: int | None,
        count: int,
        on_progress: OnProgress,
        in_all: StepsInAll,
    ) -> tuple[list[Stepped], Unrunnable]:
        steps, unrunnable, going_on = list[Stepped](), Unrunnable(), list(jobs)
        ahead, begun, unread = count > 1 and self._may_launch_ahead(jobs), 0, deque[Launched]()
        while not begun or (going_on and begun < count and begun < in_all(begun, steps)):
            latest, lost = self._launch([(job, number + begun) for job, number in going_on], slices, on_progress, ahead, unread)
            begun += 1
            while unread and (lost or len(unread) >= _most_ahead(steps)):
                going_on = self._read(unread.popleft(), going_on, steps)
            left = {job.key for job, _ in going_on}
            lost = {key: why for key, why in lost.items() if key in left}  # others had ended before
            unrunnable |= lost
            going_on = [pair for pair in going_on if pair[0].key not in lost]
            unread.append(latest)
            if not ahead:
                going_on = self._read(unread.popleft(), going_on, steps)
        while unread:
            going_on = self._read(unread.popleft(), going_on, steps)
        return steps, unrunnable

    def _may_launch_ahead(self, jobs: Sequence[tuple[TrainingJob, int]]) -> bool:
        """Whether a step of these jobs may be launched before the losses of the one before are read: where its device works
        meanwhile, and no preferences are to be read first."""
        return self.trainer.launches_ahead and all(job.reference is None for job, _ in jobs)

    def _launch(
        self,
        jobs: Sequence[tuple[TrainingJob, int]],
        slices: int | None,
        on_progress: OnProgress,
        ahead: bool,
        unread: Collection[Launched],
    ) -> tuple[Launched, Unrunnable]:
        """Launch a step of these jobs. ahead, unread: as of packed_step.launch."""
        steps = {key: one for some in self._job_steps(jobs).values() for key, one in some.items()}
        rejected = {key: why for key, one in steps.items() if (why := update_refusal(one)) is not None}
        runnable = [key for key in steps if key not in rejected]
        launched, unrunnable = self.run_with_oom_retries(
            runnable, lambda left: self._launch_for([steps[key] for key in left], slices, on_progress, ahead, unread)
        )
        return launched, rejected | unrunnable

    def _read(
        self, launched: Launched, going_on: Sequence[tuple[TrainingJob, int]], steps: list[Stepped]
    ) -> list[tuple[TrainingJob, int]]:
        """Read the losses of a step, add it to `steps`, and learn from it. going_on: the jobs that had not ended before it; the
        result has those that go on after it."""
        there = {job.key for job, _ in going_on}
        stepped = launched.read(left_out=set(launched.jobs) - there)
        if stepped.losses or not steps:  # else all its jobs had ended before: it is no step
            if stepped.passes:
                self._learn(stepped)
            stepped.grew = self._grew()
            steps.append(stepped)
        return [pair for pair in going_on if math.isfinite(stepped.losses.get(pair[0].key, math.nan))]

    def _learn(self, stepped: Stepped) -> None:
        """Learn from a step without its preferences, which take time besides."""
        if not stepped.preferring:
            self._leave_out_stalls(stepped)
        # on a sharded base the other ranks' tasks step at the same time
        alone = len(stepped.work) == 1 and self._failed is None
        self._pace.learn(stepped.load, stepped.seconds - stepped.preference_seconds, alone)

    def _leave_out_stalls(self, stepped: Stepped) -> None:
        """The service learns from each task's work how fast a device is."""
        seconds = self._pace.without_stall(stepped.load, stepped.seconds)
        for work in stepped.work.values():
            work.device_steps, work.device_seconds = (0, 0.0) if seconds is None else (1, seconds)

    def _launch_for(
        self,
        steps: Sequence[JobStep],
        slices: int | None,
        on_progress: OnProgress,
        ahead: bool,
        unread: Collection[Launched],
    ) -> Launched:
        steps_in_progress = [self._step_in_progress(placement, some) for placement, some in _by_placement(steps).items()]
        budget = self.capacity.pass_budget
        try:
            return launch(self.trainer, dict.fromkeys(steps_in_progress, slices), budget, on_progress, ahead, unread)
        except OutOfMemory:
            for placement in _by_placement(steps):
                del self._steps_in_progress[placement]
            raise

    def _job_steps(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, dict[JobKey, JobStep]]:
        return _by_placement([JobStep(job, self.adapters.slot(job.key), number) for job, number in jobs])

    def _step_in_progress(self, placement: str, steps: Mapping[JobKey, JobStep]) -> StepInProgress:
        """The task's step under way, or its next one. Where it cannot go on (rows moved, pieces of another size), the gradients
        that it has begun are void, and it begins anew."""
        known, budget = self._steps_in_progress.get(placement), self.tracker.piece_tokens(placement)
        if known is not None:
            known.drop_ended(steps)
            if known.can_resume(steps, budget):
                return known
            here = {one.slot for one in steps.values()}
            self.trainer.discard_gradients([slot for slot in known.slots if slot in here])
        self._steps_in_progress[placement] = StepInProgress(list(steps.values()), budget)
        return self._steps_in_progress[placement]

    def _evaluate(
        self, requests: Mapping[JobKey, EvaluationRequest], on_progress: OnProgress
    ) -> tuple[dict[JobKey, ValidationResult], Unrunnable]:
        found: dict[JobKey, ValidationResult] = {}
        placed = {
            key: replace(
                request,
                slot=self.adapters.slot(key),
                piece_tokens=self.tracker.piece_tokens(key.placement),
                placement=key.placement,
            )
            for key, request in requests.items()
        }

        def go_on(left: Sequence[JobKey]) -> None:
            wanted = {key: placed[key] for key in left if key not in found}
            for key, result in evaluate(self.trainer, wanted, self.capacity.piece_tokens, on_progress):
                found[key] = result

        _, unrunnable = self.run_with_oom_retries(list(placed), go_on)
        return found, {key: why for key, why in unrunnable.items() if key not in found}

    def run_with_oom_retries(self, jobs: Sequence[JobKey], work: Callable[[list[JobKey]], T]) -> tuple[T, Unrunnable]:
        """Run `work` for these jobs, with shorter passes or recomputed activations where the device had no memory, and without
        the jobs for which that is not enough. First of all generation gives way, then free rows go, but once: the work may take
        them again. On a sharded base raises OutOfMemory: the other ranks are in the midst of the pass that failed here."""
        unrunnable: Unrunnable = {}
        spared = False
        while True:
            left = [key for key in jobs if key not in unrunnable]
            try:
                return work(left), unrunnable
            except OutOfMemory as error:
                if self._failed is not None:
                    self._failed.remember(error, self.trainer.arena.rows)
                    raise
                self.trainer.discard_gradients(self.adapters.slots(left))
                if self.give_way():
                    log.warning("out of memory in a pass of %d tokens; generation gave way", error.tokens)
                elif not spared and shrink_arena(self.trainer):
                    spared = True
                    log.warning("out of memory in a pass of %d tokens; the arena gave back its free rows", error.tokens)
                else:
                    unrunnable |= self.tracker.shrink_after_oom(error, left, self.trainer.arena.rows)


def _most_ahead(steps: Sequence[Stepped]) -> int:
    """How many steps may be launched and not read, beside the one just launched, after these."""
    return max(1, min(_AHEAD_STEPS, int(_AHEAD_SECONDS / max(steps[-1].seconds, 1e-9)))) if steps else 1


def _by_placement(steps: Sequence[JobStep]) -> dict[str, dict[JobKey, JobStep]]:
    """The steps of each task, in their order."""
    placements: dict[str, dict[JobKey, JobStep]] = {}
    for one in steps:
        placements.setdefault(one.job.key.placement, {})[one.job.key] = one
    return placements
