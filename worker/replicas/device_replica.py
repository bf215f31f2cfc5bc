"""One copy of the base on one device: steps and evaluates its jobs. Assigns none and judges none.

A pass that finds no memory is repeated in shorter passes, or with recomputation, on this replica alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from worker.adapters.adapter_slots import Slots
from worker.executor.job_run import JobRun
from worker.model.plain.trainer import OutOfMemory
from worker.replicas.packed_step import Stepped, refusal, step
from worker.replicas.validation_pass import ValidationResult, ValidationSubject, evaluate

T = TypeVar("T")
Tick = Callable[[], None]
Hopeless = dict[JobRun, str]  # jobs that cannot be stepped, for lack of memory or by their own numbers, and why


class Replica:
    """`hand`: the replica's own thread; None: it runs in the caller's thread."""

    def __init__(self, slots: Slots, with_hand: bool) -> None:
        self.slots = slots
        share = (torch.get_num_threads(),)  # of the cores: torch counts threads per thread, so the new one needs the same count
        self.hand = ThreadPoolExecutor(1, "replica", torch.set_num_threads, share) if with_hand else None

    def step(self, runs: Sequence[JobRun], tick: Tick) -> tuple[Stepped, Hopeless]:
        """One optimizer step of each of these jobs, without those whose update cannot be made or that find no memory."""
        slots = self.slots
        refused = {run: why for run in runs if (why := refusal(run)) is not None}
        sound = [run for run in runs if run not in refused]
        stepped, hopeless = self.attempt(sound, lambda left: step(slots.base.trainer, left, slots.capacity.step_tokens, tick))
        return stepped, refused | hopeless

    def examine(self, runs: Sequence[JobRun], tick: Tick) -> tuple[Mapping[JobRun, ValidationResult], Hopeless]:
        """Validation losses of these jobs."""
        found: dict[JobRun, ValidationResult] = {}
        examinees: dict[JobRun, ValidationSubject] = {run: run.examinee for run in runs}

        def go_on(left: Sequence[JobRun]) -> None:
            wanted = {run: examinees[run] for run in left if run not in found}
            for run, result in evaluate(self.slots.base.trainer, wanted, self.slots.capacity.step_tokens, tick):
                found[run] = result

        _, hopeless = self.attempt(runs, go_on)
        return found, {run: why for run, why in hopeless.items() if run not in found}

    def attempt(self, runs: Sequence[JobRun], work: Callable[[list[JobRun]], T]) -> tuple[T, Hopeless]:
        """Run `work` for these jobs, with shorter passes or recomputed activations where the device had no memory, and without
        the jobs for which that is not enough."""
        hopeless: Hopeless = {}
        while True:
            left = [run for run in runs if run not in hopeless]
            try:
                return work(left), hopeless
            except OutOfMemory as error:
                hopeless |= self.slots.tighten(error, left)
