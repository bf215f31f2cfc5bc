"""Schedules which tasks of an executor take part in its next step: keeps their deficits and speeds between steps, and asks the
pure policy (policy/deficit_round_robin.py)."""

from collections.abc import Mapping, Sequence

from contract.messages.placement_messages import Placement
from worker.executor.job_run import JobRun
from worker.policy.deficit_round_robin import RunnableTask, SliceCost, SpeedEstimate, select, urgency
from worker.policy.step_time import STALL
from worker.replicas.replica_set import Replicas

_MEASURED_SECONDS = 5.0  # of shared steps before a slowdown is told


class StepScheduler:
    """One decision for all replicas. Rank 0 alone has one, and tells the other ranks with the step."""

    def __init__(self) -> None:
        self._deficits: Mapping[str, float] = {}
        self._progress: dict[str, SpeedEstimate] = {}
        self._told: dict[str, SpeedEstimate] = {}  # since a neighbour last left
        self._alone: str | None = None  # the only one that stepped at the last choice
        self._chosen: dict[str, float] = {}  # seconds that the slices of the last choice take alone

    def choose(
        self, replicas: Replicas, placements: Mapping[str, Placement], runs: Sequence[JobRun]
    ) -> tuple[list[JobRun], int | None]:
        """Of these active jobs, those whose tasks step now, and how many slices of their steps run. A task alone runs its whole
        step (None). placements: all that train here, also those none of whose jobs is active."""
        if self._told.keys() - placements.keys():
            self._told = {}  # the steps to come show whether that was enough for those who stay
        active = {run.key.placement for run in runs}
        self._alone = next(iter(active)) if len(active) == 1 else None
        if self._alone is not None:
            self._deficits, self._progress, self._chosen = {}, {}, {}  # nobody is owed anything
            return list(runs), None
        costs = replicas.next_slice_costs([(run.job, run.step) for run in runs])
        candidates = [self._candidate(placements[key], cost) for key, cost in costs.items()]
        selection = select(candidates, self._deficits, replicas.pass_budget)
        self._deficits = selection.deficits
        self._progress = {one.key: self._progress.get(one.key, SpeedEstimate()) for one in candidates}
        self._chosen = {key: costs[key].seconds for key in selection.chosen}
        return [run for run in runs if run.key.placement in self._chosen], 1

    def record_duration(self, seconds: float) -> None:
        """The step of the last choice took so long. Of a stall, which fewer neighbours would not shorten, as much counts as the
        slices may take one after another."""
        if self._alone in self._told:  # beside those who only wait
            self._told[self._alone] = self._told[self._alone].after(seconds, seconds)
        seconds = min(seconds, STALL * sum(self._chosen.values()))

        def after(seen: SpeedEstimate, key: str) -> SpeedEstimate:
            return seen.after(seconds, self._chosen.get(key, 0.0))

        self._told |= {key: after(self._told.get(key, SpeedEstimate()), key) for key in self._progress}
        self._progress = {key: after(seen, key) for key, seen in self._progress.items()}

    def slowdown(self, placement: str) -> float | None:
        """How many times slower than alone the placement has been of late, beside those who are there; None where nobody is or
        nothing is known."""
        seen = self._told.get(placement)
        return 1.0 / seen.speed if seen is not None and seen.seconds >= _MEASURED_SECONDS and seen.speed > 0 else None

    def _candidate(self, placement: Placement, cost: SliceCost) -> RunnableTask:
        speed = self._progress.get(placement.placement_id, SpeedEstimate()).speed
        return RunnableTask(
            placement.placement_id,
            placement.tenant_id,
            cost.seconds,
            cost.tokens,
            placement.weight,
            urgency(speed, placement.max_slowdown),
        )
