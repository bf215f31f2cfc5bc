"""The replicas of an executor's base, one on each of its devices, copies or shards: which holds which job, and running all in
parallel.

Adapter parallelism: a job is on one replica as a whole, so nothing crosses between devices. Jobs are assigned on admission
(policy/replica_assignment.py) and move only between steps, as host copies. Results come back in the caller's order, not in
that in which replicas finish.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from contract.messages.placement_messages import BaseModelRef
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.location_types import AdapterSpec
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.adapters.warm_start import StartAdapter
from worker.data.executor_folders import ExecutorFolders
from worker.model.arena import Slot
from worker.policy.activations import Need
from worker.policy.adapter_memory_model import Capacity
from worker.policy.admission import Demand, admission_refusal
from worker.policy.deficit_round_robin import SliceCost
from worker.policy.job_record import JobKey
from worker.policy.replica_assignment import Load, assign, next_move
from worker.policy.step_time import StepLoad
from worker.replicas.base_loader import DeviceBase
from worker.replicas.device_replica import OnProgress, Pending, Replica, Unrunnable
from worker.replicas.packed_step import Stepped
from worker.replicas.ranks.rank_group import LoadedBase
from worker.replicas.ranks.remote_replica import RemoteReplica
from worker.replicas.ranks.step_window import StepWindow
from worker.replicas.training_job import TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult

log = logging.getLogger(__name__)

T = TypeVar("T")
AnyReplica = Replica | RemoteReplica  # of one interface, but that a remote one is told otherwise when to end its steps


class Replicas:
    """All replicas of one loaded base: the first in this process, each other in a process of its own. `store` has all their
    adapters."""

    def __init__(
        self,
        loaded: LoadedBase,
        capacities: Sequence[Capacity],
        folders: ExecutorFolders,
        give_way: Callable[[], bool],
        on_lost: Callable[[JobKey, str], None],
        wanted: Callable[[], bool],
        on_steps: Callable[[list[Stepped]], None],
    ) -> None:
        """give_way: frees what others than jobs hold on the first device; whether there was anything. on_lost: as of the store.
        wanted: whether something waits until all have met; asked between two of several steps. on_steps: takes some of them."""
        self.loaded, self._wanted, self._on_steps = loaded, wanted, on_steps
        self.lead = 0.0  # seconds a step that the fastest replica took less than the slowest, of late
        failed = loaded.failed_passes(folders.scratch)
        tracker, scratch = CapacityTracker(capacities[0]), folders.own.folder
        self.first = Replica(self.base.trainer, tracker, scratch, give_way, failed)  # measures what is common
        layout, others = self.base.trainer.arena.layout, zip(loaded.ranks, capacities[1:], strict=True)
        self._all: tuple[AnyReplica, ...] = (self.first, *(RemoteReplica(rank, capacity, layout) for rank, capacity in others))
        self.host_bytes = capacities[0].park_bytes  # of main memory for adapters that are parked, and again for checkpoints
        self.store = AdapterStore([one.adapters for one in self._all], self.host_bytes, folders.own, on_lost, folders.cache)

    @property
    def ref(self) -> BaseModelRef:
        return self.base.ref

    @property
    def base(self) -> DeviceBase:
        return self.loaded.base

    @property
    def sharded(self) -> bool:
        """Whether each holds shards of the base, not a copy."""
        return self.loaded.sharding is not None

    # ---- which job where -------------------------------------------------------------------------------------------

    def add_placement(self, placement: str, needs: Sequence[Need]) -> None:
        """Add a task, with what it needs of each replica."""
        for replica, need in zip(self._all, needs, strict=True):
            replica.add_placement(placement, need)

    def add_jobs(
        self,
        jobs: Sequence[TrainingJob],
        start: StartAdapter | None,
        files: Mapping[int, Path],
        drawn: Mapping[int, Tensor],
    ) -> None:
        """Add jobs of tasks that were added, whose adapters wait for arena rows. start: the adapter that they start from.
        files, drawn: by job index, checkpoints, and first weights where they were drawn before."""
        for replica in self._all:
            replica.add_jobs(jobs)
        for job in jobs:
            index = job.key.job
            self.store.add(job.key, AdapterSpec.of(job.config, start), files.get(index), drawn.get(index))

    def remove_placement(self, placement: str) -> None:
        """Remove a task that has left and whose jobs are forgotten."""
        for replica in self._all:
            replica.remove_placement(placement)

    def rejected(self, demands: Iterable[Demand]) -> Unrunnable:
        """The jobs that fit on no replica, even alone, and why."""
        return {_key(demand): why for demand in demands if (why := self._refusal(demand)) is not None}

    def _refusal(self, demand: Demand) -> str | None:
        whys = [admission_refusal(demand, replica.capacity) for replica in self._all]
        return None if None in whys else whys[0]

    def admit(self, active: Sequence[Demand], waiting: Sequence[Demand], start: int = 0) -> tuple[list[JobKey], Unrunnable]:
        """Give rows, on replicas from number `start` on, to the waiting jobs that the policy admits. Returns these jobs, and
        those for which an empty replica has no memory. A job that waited in one arena may continue in another's."""
        assigned = assign(self._loads(active)[start:], waiting)
        given, unrunnable = set[JobKey](), Unrunnable()
        for number, (replica, demands) in enumerate(zip(self._all[start:], assigned, strict=True), start):
            chosen = set(map(_key, demands))
            keys = [_key(demand) for demand in waiting if _key(demand) in chosen]
            lacking = self.store.allocate_rows(number, keys)
            if replica.empty:
                unrunnable |= lacking
            given.update(key for key in chosen if self.store.trains_on(key) == number)
        return [_key(demand) for demand in waiting if _key(demand) in given], unrunnable

    def rebalance(self, active: Sequence[Demand]) -> bool:
        """Move running jobs from replicas with much left to replicas with little. Whether a moved job found no memory and
        waits."""
        while (move := next_move(self._loads(active))) is not None:
            key = _key(move.demand)
            log.info("%s moved to replica %d to balance load", key, move.taker)
            self.store.park(key)
            self.store.evict(key)
            if self.store.allocate_rows(move.taker, [key]) or key in self.store.lost:
                return True
        return False

    def hold(self, weights: Tensor, alpha: float) -> Slot:
        """Arena rows on the first replica for an adapter of these weights, float32 [rank, W], which no job trains: held until
        `first.adapters.drop`. Raises NoRows."""
        evicted: dict[JobKey, Tensors] = {}
        try:
            return self.first.adapters.hold(weights, alpha, self.store.may_leave(0), evicted)
        finally:
            self.store.keep_evicted(evicted)

    def on_first(self, active: Sequence[Demand]) -> list[Demand]:
        """Those of these running jobs that are on the first replica."""
        return [demand for demand in active if self.store.trains_on(_key(demand)) == 0]

    def _loads(self, active: Sequence[Demand]) -> list[Load]:
        shares = self._shares({_key(demand): demand for demand in active})
        return [Load(tuple(shares[replica].values()), replica.capacity) for replica in self._all]

    def _shares(self, jobs: Mapping[JobKey, T]) -> dict[AnyReplica, dict[JobKey, T]]:
        """The running jobs of each replica, in the caller's order."""
        shares: dict[AnyReplica, dict[JobKey, T]] = {replica: {} for replica in self._all}
        for key, value in jobs.items():
            number = self.store.trains_on(key)
            assert number is not None, "only jobs with rows run"
            shares[self._all[number]][key] = value
        return shares

    # ---- all at once -----------------------------------------------------------------------------------------------

    def next_slice_costs(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, SliceCost]:
        """What the next slice of each task's step takes on the replica where it takes longest. jobs: each with the number of
        its step."""
        costs: dict[str, SliceCost] = {}
        for replica, own in self._shares(self._next(jobs)).items():
            for placement, load in replica.next_slice_costs(list(own.values())).items():
                known, seconds = costs.get(placement, SliceCost(0.0, 0)), replica.alone_model.seconds(load)
                costs[placement] = SliceCost(max(known.seconds, seconds), max(known.tokens, round(load.tokens)))
        return costs

    @property
    def count(self) -> int:
        return len(self._all)

    @property
    def launches_ahead(self) -> bool:
        """Whether devices may be given a step before they are through with the last."""
        return self.base.trainer.launches_ahead

    def take_whole_steps(self, jobs: Sequence[tuple[TrainingJob, int]]) -> bool:
        """Whether one replica has all jobs, and the next slice of each task's step is its whole step."""
        return self.count == 1 and self.first.in_one_slice(jobs)

    def seconds_alone(self, load: StepLoad) -> float:
        """What a task's step takes alone on the first replica."""
        return self.first.alone_model.seconds(load)

    def under_way(self, placement: str) -> bool:
        """Whether a replica has run a slice of the task's step, and not all."""
        return any(replica.under_way(placement) for replica in self._all)

    @property
    def pass_budget(self) -> int:
        """Tokens of a micro-batch, on the replica that has the least memory for it."""
        return min(replica.capacity.pass_budget for replica in self._all)

    def step(
        self, jobs: Sequence[tuple[TrainingJob, int]], slices: int | None, count: int, on_progress: OnProgress
    ) -> tuple[list[Stepped], Unrunnable]:
        """Run the next so many slices (None: all) of these tasks' steps, on all replicas at once, and `count` times before they
        meet again: less often where something waits for that. jobs: each with the number of its first step. Jobs that lack
        memory are left out. The result lacks the steps that `on_steps` was given meanwhile. `seconds` of each: its part of the
        time until the last replica was done, or had said so."""
        since, wanted = time.monotonic(), self._next(jobs)
        at_work = self._at_work(wanted)

        def merged(each: Iterable[Sequence[Stepped]]) -> list[Stepped]:
            nonlocal since
            steps = [_merged([stepped for stepped in parts if stepped is not None], wanted) for parts in zip_longest(*each)]
            began, since = since, time.monotonic()
            for stepped in steps:
                stepped.seconds = (since - began) / len(steps)
            return steps

        ranks = [each.rank for each in at_work if isinstance(each, RemoteReplica)]
        window = StepWindow(count, ranks, self._wanted, lambda each: self._on_steps(merged(each)))
        begun = [
            replica.begin_steps(list(own.values()), slices, count, on_progress)
            if isinstance(replica, RemoteReplica)
            else replica.begin_steps(list(own.values()), slices, count, on_progress, window.steps_in_all)
            for replica, own in at_work.items()
        ]
        own_part = [begun.pop()()] if self.first in at_work else []
        window.await_others(own_part[0][0] if own_part else None)
        results = own_part + _results(begun)
        unrunnable = {key: why for _, lost in results for key, why in lost.items()}
        paces = [sum(stepped.seconds for stepped in steps) / len(steps) for steps, _ in results]
        self.lead = max(paces) - min(paces)
        return merged(steps[window.told :] for steps, _ in results), unrunnable

    def _next(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[JobKey, tuple[TrainingJob, int]]:
        """The jobs that step now: while a replica is in the midst of a task's step, its jobs elsewhere wait for it."""
        placed = {job.key: (job, number) for job, number in jobs}
        placements = {key.placement for key in placed}
        busy = {replica: {placement for placement in placements if replica.under_way(placement)} for replica in self._all}
        anywhere = set[str]().union(*busy.values())
        if not anywhere or len(self._all) == 1:
            return placed
        shares = self._shares(placed)
        waits = {key for replica, own in shares.items() for key in own if key.placement in anywhere - busy[replica]}
        return {key: pair for key, pair in placed.items() if key not in waits}

    def evaluate(
        self, requests: Mapping[JobKey, EvaluationRequest], on_progress: OnProgress
    ) -> tuple[Mapping[JobKey, ValidationResult], Unrunnable]:
        """Validation losses of these jobs."""
        found, unrunnable = dict[JobKey, ValidationResult](), Unrunnable()
        begun = [replica.begin_evaluation(own, on_progress) for replica, own in self._at_work(requests).items()]
        for results, lost in _results(begun):
            found |= results
            unrunnable |= lost
        return {key: found[key] for key in requests if key in found}, unrunnable

    def _at_work(self, jobs: Mapping[JobKey, T]) -> dict[AnyReplica, dict[JobKey, T]]:
        """The replicas that hold any of these jobs; of a sharded base all, since each brings its shards. The first one comes
        last, since it works in the caller's thread."""
        return {replica: own for replica, own in reversed(self._shares(jobs).items()) if own or self.sharded}


def _merged(parts: Sequence[Stepped], order: Iterable[JobKey]) -> Stepped:
    """The same step of several replicas, its losses in this order of the jobs."""
    whole = Stepped({}, 0.0)
    for stepped in parts:
        whole.losses |= stepped.losses
        whole.accuracies |= stepped.accuracies
        whole.preferences |= stepped.preferences
        whole.passes += stepped.passes
        whole.preference_seconds = max(whole.preference_seconds, stepped.preference_seconds)
        for placement, tokens in stepped.preferring.items():
            whole.preferring[placement] = whole.preferring.get(placement, 0) + tokens
        whole.grew |= stepped.grew
        for placement, work in stepped.work.items():
            whole.work[placement].add(work)
    whole.losses = {key: whole.losses[key] for key in order if key in whole.losses}
    return whole


def _results(begun: Sequence[Pending[T]]) -> list[T]:
    """The results of all; the one that began last comes first, since it may begin only now."""
    return [pending() for pending in reversed(begun)]


def _key(demand: Demand) -> JobKey:
    assert isinstance(demand.key, JobKey), "a job's demand is named by its key"
    return demand.key
