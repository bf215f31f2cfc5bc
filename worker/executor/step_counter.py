"""Counts the steps that replicas have taken to the tasks whose jobs took them: some while the replicas train on, the rest once
they have met."""

import math
from collections.abc import Sequence

from worker.executor.attached_placements import AttachedPlacements
from worker.executor.generation.generation_turns import GenerationTurns
from worker.executor.step_scheduler import StepScheduler
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import Stepped


class StepCounter:
    """Since `begin`: losses: the last one of each job that stepped. grew: whether micro-batches may be longer from now on."""

    def __init__(self, attached: AttachedPlacements, scheduler: StepScheduler, generation: GenerationTurns) -> None:
        self._attached, self._scheduler, self._generation = attached, scheduler, generation
        self.begin()

    def begin(self) -> None:
        """The replicas begin their next steps."""
        self.losses: dict[JobKey, float] = {}
        self.grew = False

    @property
    def decides(self) -> bool:
        """Whether something follows from these steps at once: the end of a job whose loss is not finite, room for others, or
        another choice of who takes part."""
        return self.grew or self._scheduler.asks_again or not all(map(math.isfinite, self.losses.values()))

    def count(self, steps: Sequence[Stepped]) -> None:
        """All replicas have taken these steps, one after another."""
        for stepped in steps:
            self._scheduler.record(stepped, self._attached.__getitem__)
            self._generation.trained(stepped.seconds)
            self.losses |= stepped.losses
            self.grew |= stepped.grew
        for placement in dict.fromkeys(key.placement for stepped in steps for key in stepped.losses):
            self._attached[placement].trained(steps)
