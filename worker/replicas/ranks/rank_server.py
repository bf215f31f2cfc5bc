"""A rank's own side: holds a copy of the base and its replica, and runs what rank 0 calls, one call after another."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from contract.messages.placement_messages import BaseModelRef
from worker.adapters.arena_adapters import Allocated, Source
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors, UnreadableWeights, load_tensors
from worker.adapters.location_types import AdapterSpec
from worker.data.object_cache import OBJECTS, ObjectCache
from worker.data.token_stream import TokenStream
from worker.hosts.host_link import interface_of
from worker.model.plain.trainer import Trainer
from worker.model.sharding.rank_collectives import COLLECTIVE_SECONDS, RankCollectives, reach_store
from worker.model.sharding.weight_shards import WeightShards
from worker.policy.activations import Activations, Need
from worker.policy.adapter_memory_model import Capacity
from worker.policy.job_record import JobKey
from worker.replicas.base_loader import BaseError, Crowded, check_revision, load_trainer
from worker.replicas.device_replica import Replica, Unrunnable
from worker.replicas.dpo_reference import Reference
from worker.replicas.failed_passes import FailedPasses
from worker.replicas.load_progress import LoadProgress
from worker.replicas.memory_profile import Profiles, capacity_of, limit_memory, memory_of
from worker.replicas.packed_step import Stepped
from worker.replicas.ranks.rank_link import HostRankLink, Link, LinkClosed
from worker.replicas.ranks.rank_messages import (
    Call,
    CallResult,
    GoOn,
    PassDone,
    Pause,
    Paused,
    ReplicaState,
    SliceForecast,
    StepOrder,
    StepsDone,
)
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.replicas.ranks.step_window import TELL_SECONDS
from worker.replicas.sharding_choice import ChosenSharding
from worker.replicas.training_job import TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult
from worker.settings import Settings

_PROGRESS_SECONDS = 0.5  # at least, between messages of progress
_ALIVE_SECONDS = 2.0  # between those of a load, which takes as long as it takes
_MAY_FAIL = (BaseError, Crowded, FileNotFoundError, UnreadableWeights)  # errors that answer a call; any other ends the rank

# those of the replica's adapters (arena_adapters.ArenaAdapters) as they are
_ADAPTER_CALLS = frozenset(
    ("tensors", "rows", "note_lowest", "read_lowest", "lowest_read", "mean_weights", "restore_mean", "park", "evict", "free")
)


class RankServer:
    def __init__(self, link: Link, memory: SharedHostMemory) -> None:
        self._link, self._memory = link, memory
        self._trainer: Trainer | None = None
        self._scratch = Path()
        self._replica: Replica | None = None
        self._failed: FailedPasses | None = None
        self._streams: dict[str, list[TokenStream]] = {}  # of tasks
        self._jobs: dict[JobKey, TrainingJob] = {}
        self._activations: dict[str, Activations] = {}
        self._references: dict[str, Reference] = {}  # under dpo, of tasks
        self._dropped: list[int] = []
        self._told_at = 0.0
        self._in_all = 1  # steps of the call under way
        self._steps_told, self._steps_told_at = 0, 0.0  # of these, and when
        calls: list[Callable[..., Any]] = [
            *(self.load, self.connect, self.accompany, self.capacity, self.start),
            *(self.open_stream, self.close_streams, self.add_placement, self.add_jobs, self.remove_placement, self.refer),
            *(self.steps, self.forecasts, self.evaluate),
            self.allocate,
        ]
        self._calls = {call.__name__: call for call in calls}

    def serve(self) -> None:
        """Run calls until rank 0 closes the link."""
        try:
            while True:
                self._run(self._link.receive())
        except LinkClosed:
            return

    def _run(self, call: Call | Pause) -> None:
        if isinstance(call, Pause):  # of a call that was answered meanwhile
            return
        self._memory.take_back(call.returned)
        for placement, now in call.activations.items():
            self._activations[placement].copy_from(now)
        try:
            of_adapters = call.name in _ADAPTER_CALLS
            result = (getattr(self._own.adapters, call.name) if of_adapters else self._calls[call.name])(*call.args)
        except _MAY_FAIL as error:
            result = error
        if call.answers:
            dropped, self._dropped = self._dropped, []
            self._link.send(CallResult(result, self._state(), dropped))

    def _state(self) -> ReplicaState:
        if self._replica is None:
            return ReplicaState()
        replica = self._replica
        under_way = frozenset(placement for placement in self._activations if replica.under_way(placement))
        return ReplicaState(replica.capacity, replica.alone_model, under_way, self._activations)

    def _progress(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= _PROGRESS_SECONDS:
            self._told_at = now
            self._link.send(PassDone())

    # ---- the base ------------------------------------------------------------------------------------------------------

    def load(
        self,
        ref: BaseModelRef,
        device: torch.device,
        threads: int,
        settings: Settings,
        sharding: ChosenSharding | None,
        rank: int,
    ) -> None:
        """Load a copy of the base, or this rank's shards of it. A folder that hosts do not share is checked once on each: here
        by the first rank, where that is not rank 0. Raises BaseError, or Crowded."""
        shared = Path(ref.source).is_relative_to(settings.worker_dir)
        if isinstance(self._link, HostRankLink) and os.environ["LOCAL_RANK"] == "0" and not shared:
            with self._link.repeating(PassDone(), _ALIVE_SECONDS):
                check_revision(ref)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # no context on another's
            self._memory.pin()
            limit_memory(device, settings)
        else:
            torch.set_num_threads(threads)
        eight_bit, memory = settings.worker_moments == "8bit", memory_of(device, settings)
        with self._link.repeating(PassDone(), _ALIVE_SECONDS) as say:
            progress = LoadProgress(f"base model {ref.name}, rank {rank}", lambda _: say())
            self._trainer = load_trainer(ref, device, eight_bit, memory, sharding, rank, progress)
        self._trainer.arena.host_memory, self._scratch = self._memory.empty, settings.scratch
        if sharding is not None:
            self._failed = FailedPasses(ObjectCache(settings.scratch / OBJECTS), ref, device, sharding.plan.world)

    def connect(self, address: str, port: int, several_hosts: bool) -> None:
        """Join the other ranks of a sharded base, at rank 0's address."""
        shards, interface = self._shards, None
        if several_hosts:
            own = [self._link.own_address] if isinstance(self._link, HostRankLink) else []
            interface = interface_of([address, *own])
        store = reach_store(address, port, shards.world, COLLECTIVE_SECONDS)
        shards.connect(
            RankCollectives(store, shards.rank, shards.world, shards.device, COLLECTIVE_SECONDS, several_hosts, interface)
        )

    def accompany(self) -> None:
        """Bring this rank's shards to a forward pass that rank 0 runs alone."""
        self._shards.run_empty_pass(backward=False)

    @property
    def _shards(self) -> WeightShards:
        shards = self._loaded.backbone.shards
        assert shards is not None, "only ranks of a sharded base are called so"
        return shards

    def capacity(self, profiles: Profiles, settings: Settings, replicas: int, rank: int) -> Capacity:
        capacity = capacity_of(profiles, self._loaded, settings, replicas, rank)
        return self._failed.lowered(capacity) if self._failed is not None else capacity

    def start(self, capacity: Capacity) -> None:
        self._replica = Replica(self._loaded, CapacityTracker(capacity), self._scratch, failed=self._failed)

    @property
    def _loaded(self) -> Trainer:
        assert self._trainer is not None, "the base is loaded first"
        return self._trainer

    @property
    def _own(self) -> Replica:
        assert self._replica is not None, "the replica is started first"
        return self._replica

    # ---- tasks -----------------------------------------------------------------------------------------------------------

    def open_stream(self, placement: str, folder: Path) -> None:
        """Map the stream before its task's jobs come, so that it is readable even where its folder is removed. Raises
        FileNotFoundError."""
        self._streams.setdefault(placement, []).append(TokenStream.mapped(folder))

    def close_streams(self, placement: str) -> None:
        self._streams.pop(placement, None)

    def add_placement(self, placement: str, need: Need) -> None:
        self._activations[placement] = need.activations
        self._own.add_placement(placement, need)

    def add_jobs(self, jobs: Sequence[TrainingJob]) -> None:
        """They share their task's activations, and its reference where the task has one."""
        for job in jobs:
            known = self._references.get(job.key.placement)
            self._jobs[job.key] = replace(job, activations=self._activations[job.key.placement], reference=known)

    def remove_placement(self, placement: str) -> None:
        self._own.remove_placement(placement)
        self.close_streams(placement)
        self._jobs = {key: job for key, job in self._jobs.items() if key.placement != placement}
        self._activations.pop(placement, None)
        self._references.pop(placement, None)
        self._dropped += self._memory.trim()

    def refer(self, placement: str, reference: Reference) -> None:
        """The task's reference is known."""
        self._references[placement] = reference
        own = {key: replace(job, reference=reference) for key, job in self._jobs.items() if key.placement == placement}
        self._jobs |= own

    # ---- work ------------------------------------------------------------------------------------------------------------

    def steps(self, order: StepOrder) -> tuple[list[Stepped], Unrunnable, dict[str, SliceForecast]]:
        jobs = [(self._jobs[key], number) for key, number in order.jobs]
        self._in_all, self._steps_told, self._steps_told_at = order.count, 0, time.monotonic()
        steps, unrunnable = self._own.begin_steps(jobs, order.slices, order.count, self._progress, self._steps_in_all)()
        if order.slices is None:
            return steps[self._steps_told :], unrunnable, {}
        taken = Counter(key for stepped in steps for key in stepped.losses)
        coming = [(key, number + taken[key]) for key, number in order.jobs if key not in unrunnable]
        left = [(key, number) for key, number in coming if number < self._jobs[key].total_steps]
        return steps[self._steps_told :], unrunnable, self.forecasts(left)

    def _steps_in_all(self, begun: int, taken: Sequence[Stepped]) -> int:
        """So many steps of the call are begun, and these are taken: how many it will be, which rank 0 says where it asks this
        rank to wait."""
        if len(taken) > self._steps_told and time.monotonic() - self._steps_told_at >= TELL_SECONDS:
            self._link.send(StepsDone(list(taken[self._steps_told :])))
            self._steps_told, self._steps_told_at = len(taken), time.monotonic()
        if self._link.waits(0):
            self._link.receive()  # a Pause: while a call is under way rank 0 says nothing else
            self._link.send(Paused(begun))
            told: GoOn = self._link.receive()
            self._in_all = told.steps
        return self._in_all

    def forecasts(self, jobs: Sequence[tuple[JobKey, int]]) -> dict[str, SliceForecast]:
        """What the next slice of each task's step takes, if these are its jobs, at these steps."""
        loads = self._own.next_slice_costs([(self._jobs[key], number) for key, number in jobs])
        return {
            placement: SliceForecast(frozenset(pair for pair in jobs if pair[0].placement == placement), load)
            for placement, load in loads.items()
        }

    def evaluate(self, requests: Mapping[JobKey, EvaluationRequest]) -> tuple[dict[JobKey, ValidationResult], Unrunnable]:
        return self._own.begin_evaluation(requests, self._progress)()

    # ---- adapters --------------------------------------------------------------------------------------------------------

    def allocate(self, key: JobKey, spec: AdapterSpec, source: Source, wanted: int, may_leave: Sequence[JobKey]) -> Allocated:
        if source is not None:
            try:
                source = self._kept(source if isinstance(source, Tensors) else load_tensors(source))
            except UnreadableWeights as error:
                return Allocated(str(error), lost=True)
        return self._own.adapters.allocate(key, spec, source, wanted, may_leave)

    def _kept(self, tensors: Tensors) -> Tensors:
        """Its weights at its lowest losses in memory of this rank: those of a message are there for the call alone."""
        lowest = (self._memory.empty(weights.shape, weights.dtype).copy_(weights) for weights in tensors.lowest)
        return replace(tensors, lowest=tuple(lowest))
