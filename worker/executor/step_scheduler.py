"""Schedules which tasks of an executor take part in its next step: keeps their deficits and speeds between steps, and asks the
pure policy (policy/deficit_round_robin.py)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from contract.messages.placement_messages import Placement
from worker.executor.inbox import ROUND_SECONDS
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.placement.work_done import Slowdown
from worker.policy.deficit_round_robin import RunnableTask, SliceCost, SpeedEstimate, allowances, charged, select, urgency
from worker.policy.job_record import JobKey
from worker.policy.step_time import STALL, StepLoad
from worker.replicas.packed_step import Stepped
from worker.replicas.replica_set import Replicas

_MEASURED_SECONDS = 5.0  # of shared steps before a slowdown is told
# that replicas train before they meet again, unless a command, a checkpoint or a thread waits for that: what their steps differ
# by has evened out then, in tokens and in the passes that one of them captures. Their losses are told meanwhile
_APART_SECONDS = 30.0
# that a task may owe besides a slice, in seconds that its steps take alone, before it is left out of steps: what evens out by
# itself must not divide them, since those of fewer tasks are slower by the task, and their buckets are captured apart
_CREDIT = 0.5
_LEAD_SECONDS = 1.0  # that the fastest may be ahead by then: a command waits until the others have taken as many steps
# of a step of several replicas, and of one, that is launched ahead: a command would wait for two longer ones, and beside those
# what a host does is little
_SHORT_SECONDS, _SHORT_ALONE_SECONDS = 1.0, 0.25


class StepScheduler:
    """One decision for all replicas. Rank 0 alone has one, and tells the other ranks with the step."""

    def __init__(self) -> None:
        self._deficits: Mapping[str, float] = {}
        self._speeds: dict[str, SpeedEstimate] = {}  # since a neighbour last left
        self._there: Sequence[str] = ()  # the placements at the last choice
        self._measured: Sequence[str] = ()  # whose speeds the last choice says something of
        self._chosen: Mapping[str, float] | None = None  # seconds that its slices take alone; None: one task's whole step
        self._together: Sequence[RunnableTask] = ()  # the tasks that the last choice has take whole steps together, several
        self._seconds_alone: Callable[[StepLoad], float] = lambda load: 0.0
        self._replicas = 1
        self._step_seconds = self._token_seconds = 0.0  # since the last choice: of a step, and of a token on one replica
        self._steps, self._seconds, self._tokens = 0, 0.0, 0  # since then
        self._whole: frozenset[JobKey] = frozenset()  # the jobs whose whole step it was; nobody's where tasks take turns

    def choose(
        self, replicas: Replicas, placements: Mapping[str, Placement], runs: Sequence[JobRun], others: bool = False
    ) -> tuple[list[JobRun], int | None, int]:
        """Of these active jobs, those whose tasks step now, how many slices of their steps run, and how often. A task alone
        runs its whole step (None), several times where that pays (see _steps_in_a_row), and so do tasks all of whose steps
        fit one pass. placements: all that train here, also those none of whose jobs is active. others: something else has its
        turn between steps."""
        self._steps, self._seconds, self._tokens, self._together = 0, 0.0, 0, ()
        if self._speeds.keys() - placements.keys():
            self._speeds = {}  # the steps to come show whether that was enough for those who stay
        self._there, self._replicas = list(placements), replicas.count
        active = {run.key.placement for run in runs}
        if len(active) == 1:
            self._deficits, self._chosen = {}, None  # nobody is owed anything
            self._measured = list(active) if len(placements) > 1 else ()
            return list(runs), None, self._steps_in_a_row(replicas, runs, others, _APART_SECONDS)
        costs = replicas.next_slice_costs([(run.job, run.step) for run in runs])
        candidates = [self._candidate(placements[key], cost) for key, cost in costs.items()]
        selection = select(candidates, self._deficits, replicas.pass_budget, _CREDIT)
        self._deficits, self._measured = selection.deficits, list(costs)
        self._chosen = {key: costs[key].seconds for key in selection.chosen}
        chosen = [run for run in runs if run.key.placement in self._chosen]
        count = 1
        if len(chosen) == len(runs) and replicas.take_whole_steps([(run.job, run.step) for run in runs]):
            count = self._steps_in_a_row(replicas, runs, others, ROUND_SECONDS)
        else:
            self._whole = frozenset()
        if count > 1:
            self._together, self._seconds_alone = candidates, replicas.seconds_alone
        return chosen, None if count > 1 else 1, count

    def _steps_in_a_row(self, replicas: Replicas, runs: Sequence[JobRun], others: bool, most_seconds: float) -> int:
        """How many whole steps these jobs take before the replicas meet again: until the first job is looked at. The
        batches of the same step differ in their tokens, so the fullest replica keeps the others waiting; over several steps
        that evens out. And a device that works by itself is given the next of several steps before it is through with the last,
        for which alone one replica takes several, where they are short. One step at first, which says how long they take: a
        whole one, not what is left of one that was begun in slices; where jobs have left, those of before say it. Ranks of a
        sharded base meet in every layer anyway."""
        last, self._whole = self._whole, frozenset(run.key for run in runs)
        if any(replicas.under_way(placement) for placement in {run.key.placement for run in runs}):
            self._whole = frozenset()
            return 1
        several = replicas.count > 1
        pays = several or (replicas.launches_ahead and all(run.job.reference is None for run in runs))
        short = 0 < self._step_seconds <= (_SHORT_SECONDS if several else _SHORT_ALONE_SECONDS)
        if not pays or not short or replicas.sharded or others or not self._whole <= last:
            return 1
        seconds = min(most_seconds, _LEAD_SECONDS * self._step_seconds / replicas.lead) if replicas.lead else most_seconds
        most = max(1, int(seconds / self._step_seconds))
        return min(run.steps_until_due(most) for run in runs)

    def record(self, stepped: Stepped, task_of: Callable[[str], PlacementRun]) -> None:
        """The step of the last choice is over: tell each task that took part what its part was, and how much slower it is than
        alone. Of a stall, which fewer neighbours would not shorten, as much counts as the slices may take one after another."""
        if self._together and self._steps:  # the choice has charged them for the first step
            self._charge(stepped)
        alone = dict.fromkeys(self._measured, stepped.seconds) if self._chosen is None else self._chosen_alone(stepped)
        seconds = min(stepped.seconds, STALL * sum(alone.values())) if alone else stepped.seconds
        self._count(seconds, alone)
        if tokens := sum(work.tokens for work in stepped.work.values()):
            # several at a time are told, each as an equal part of the time since: only all of them say how long one takes
            self._steps, self._seconds, self._tokens = self._steps + 1, self._seconds + seconds, self._tokens + tokens
            self._step_seconds = self._seconds / self._steps
            self._token_seconds = self._seconds * self._replicas / self._tokens
        for placement, work in stepped.work.items():
            task_of(placement).slowed(self.slowdown(placement))
            task_of(placement).worked(stepped.seconds, work.tokens / tokens, work)

    @property
    def asks_again(self) -> bool:
        """Whether it is to be asked again who takes part in whole steps that tasks take together: one owes more than a choice
        leaves it with, or the last choice is long ago."""
        if not self._together or self._chosen is None:
            return False
        allowed = allowances(self._together, _CREDIT)
        owe = any(self._deficits.get(key, 0.0) < -allowed[key] - own for key, own in self._chosen.items())
        return owe or self._seconds >= ROUND_SECONDS

    def _charge(self, stepped: Stepped) -> None:
        """Tasks took a further whole step together: charge each for what its own took, as if it had been chosen."""
        jobs = Counter(key.placement for key in stepped.losses)
        loads = {
            key: StepLoad(work.micro_batches, work.tokens, work.adapter_rows, jobs[key]) for key, work in stepped.work.items()
        }
        self._chosen = {key: self._seconds_alone(load) for key, load in loads.items()}
        there = [replace(one, cost=self._chosen[one.key]) for one in self._together if one.key in self._chosen]
        self._deficits = {**self._deficits, **charged(there, self._deficits)}

    def record_evaluation(self, seconds: float, tokens: Mapping[str, int]) -> None:
        """Between two steps an evaluation of so many tokens of each placement took so long: its own work, and a wait for the
        others."""
        own = self._own_seconds(seconds, tokens)
        if own:
            self._count(sum(own.values()), own)

    def _chosen_alone(self, stepped: Stepped) -> dict[str, float]:
        """Seconds alone of the slices chosen, with each task's part of the preferences that were computed before them."""
        assert self._chosen is not None
        preferring = self._own_seconds(stepped.preference_seconds, stepped.preferring)
        return {key: alone + preferring.get(key, 0.0) for key, alone in self._chosen.items()}

    def _own_seconds(self, seconds: float, tokens: Mapping[str, int]) -> dict[str, float]:
        """Each placement's part of a forward of so many tokens. Of a stall as much counts as these tokens may take to train on
        one replica, or as a step."""
        whole = sum(tokens.values())
        counted = min(seconds, STALL * max(self._step_seconds, self._token_seconds * whole))
        return {key: counted * own / whole for key, own in tokens.items()} if whole else {}

    def _count(self, seconds: float, alone: Mapping[str, float]) -> None:
        """So many seconds passed, in which these tasks did what takes so long alone."""
        self._speeds |= {
            key: self._speeds.get(key, SpeedEstimate()).after(seconds, alone.get(key, 0.0)) for key in self._measured
        }

    def slowdown(self, placement: str) -> Slowdown | None:
        """How many times slower than alone the placement has been of late, beside those who are there; None where nobody is or
        nothing is known."""
        seen = self._speeds.get(placement)
        if seen is None or seen.seconds < _MEASURED_SECONDS or seen.speed <= 0:
            return None
        return Slowdown(1.0 / seen.speed, tuple(key for key in self._there if key != placement))

    def _candidate(self, placement: Placement, cost: SliceCost) -> RunnableTask:
        speed = self._speeds.get(placement.placement_id, SpeedEstimate()).speed
        return RunnableTask(
            placement.placement_id,
            placement.tenant_id,
            cost.seconds,
            cost.tokens,
            placement.weight,
            urgency(speed, placement.max_slowdown),
        )
