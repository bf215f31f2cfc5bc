"""A replica in another process, as rank 0 sees it: the interface of device_replica.Replica, by calls of its rank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from worker.adapters.arena_adapters import Allocated, Source
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.location_types import AdapterSpec
from worker.model.arena import AdapterState
from worker.model.arena_layout import Layout
from worker.policy.activations import Need
from worker.policy.adapter_memory_model import Capacity
from worker.policy.job_record import JobKey
from worker.policy.step_time import StepLoad, StepModel
from worker.replicas.device_replica import OnProgress, Pending, Unrunnable
from worker.replicas.packed_step import Stepped
from worker.replicas.ranks.rank_messages import SliceForecast, StepOrder
from worker.replicas.ranks.rank_process import RankProcess
from worker.replicas.training_job import TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult


class RemoteAdapters:
    """The adapters in the rank's arena."""

    def __init__(self, rank: RankProcess, layout: Layout) -> None:
        self._rank, self._layout = rank, layout
        self.held: set[JobKey] = set()

    def allocate(self, key: JobKey, spec: AdapterSpec, source: Source, wanted: int, may_leave: Sequence[JobKey]) -> Allocated:
        if source is None and spec.start is not None:
            source = Tensors(AdapterState(spec.first_weights(self._layout)))
        bare = replace(spec, start=None)
        allocated: Allocated = self._rank.call("allocate", key, bare, source, wanted, list(may_leave))
        self.held -= allocated.evicted.keys()
        if allocated.lacking is None:
            self.held.add(key)
        return allocated

    def begin_tensors(self, keys: Sequence[JobKey], bare: bool) -> Pending[dict[JobKey, Tensors]]:
        return self._rank.begin("tensors", list(keys), bare)

    def read_lowest(self, key: JobKey, count: int) -> None:
        self._rank.post("read_lowest", key, count)

    def lowest_read(self, key: JobKey) -> bool:
        read: bool = self._rank.call("lowest_read", key)
        return read

    def mean_weights(self, key: JobKey, count: int) -> Tensor | None:
        weights: Tensor | None = self._rank.call("mean_weights", key, count)
        return weights

    def rows(self, key: JobKey) -> tuple[int, int]:
        rows: tuple[int, int] = self._rank.call("rows", key)
        return rows

    def note_lowest(self, key: JobKey, place: int, most: int) -> None:
        self._rank.post("note_lowest", key, place, most)

    def restore_mean(self, key: JobKey, count: int) -> bool:
        restored: bool = self._rank.call("restore_mean", key, count)
        return restored

    def park(self, key: JobKey) -> None:
        self._rank.post("park", key)
        self._rank.note_freed_rows()

    def evict(self, key: JobKey) -> Tensors:
        tensors: Tensors = self._rank.call("evict", key)
        self.held.discard(key)
        return tensors

    def free(self, key: JobKey) -> None:
        self._rank.post("free", key)
        self._rank.note_freed_rows()
        self.held.discard(key)


class RemoteReplica:
    """`adapters`: those in its arena. `rank`: its process."""

    def __init__(self, rank: RankProcess, capacity: Capacity, layout: Layout) -> None:
        self.rank = rank
        self.adapters = RemoteAdapters(rank, layout)
        self._referred: set[str] = set()  # tasks whose reference the rank has
        self._forecasts: dict[str, SliceForecast] = {}  # of slices to come, by task
        rank.call("start", capacity)

    @property
    def capacity(self) -> Capacity:
        capacity = self.rank.state.capacity
        assert capacity is not None, "a rank that has started says its capacity"
        return capacity

    @property
    def empty(self) -> bool:
        """Whether the arena holds no adapter."""
        return not self.adapters.held

    @property
    def alone_model(self) -> StepModel:
        """How long a task's step takes alone."""
        return self.rank.state.alone_model

    def under_way(self, placement: str) -> bool:
        """Whether the task has run a slice of its step, and not all."""
        return placement in self.rank.state.under_way

    def add_placement(self, placement: str, need: Need) -> None:
        """Add a task, with what it needs there."""
        self.rank.follow(placement, need.activations)
        self.rank.call("add_placement", placement, need)

    def add_jobs(self, jobs: Sequence[TrainingJob]) -> None:
        """Add jobs of a task; a reference that is known by now the rank has."""
        self.rank.call("add_jobs", [replace(job, reference=None) for job in jobs])

    def remove_placement(self, placement: str) -> None:
        """A task has left, and holds nothing there."""
        self.rank.follow(placement, None)
        self._referred.discard(placement)
        self._forecasts.pop(placement, None)
        self.rank.call("remove_placement", placement)
        self.rank.trim_memory()

    def next_slice_costs(self, jobs: Sequence[tuple[TrainingJob, int]]) -> dict[str, StepLoad]:
        """What the next slice of each task's step takes, as the last step's answer foresaw it; asks where its jobs are others
        now."""
        steps: dict[str, set[tuple[JobKey, int]]] = {}
        for job, number in jobs:
            steps.setdefault(job.key.placement, set()).add((job.key, number))
        unknown = {p for p, some in steps.items() if p not in self._forecasts or self._forecasts[p].jobs != some}
        if unknown:
            self._refer([job for job, _ in jobs])
            asked = [(job.key, number) for job, number in jobs if job.key.placement in unknown]
            self._forecasts |= self.rank.call("forecasts", asked)
        return {placement: self._forecasts[placement].load for placement in steps}

    def begin_steps(
        self,
        jobs: Sequence[tuple[TrainingJob, int]],
        slices: int | None,
        count: int,
        on_progress: OnProgress,
    ) -> Pending[tuple[list[Stepped], Unrunnable]]:
        """As of Replica. The rank works from now on, and takes `count` steps, or as many as StepWindow has it take."""
        self._refer([job for job, _ in jobs])
        order, before = StepOrder([(job.key, number) for job, number in jobs], slices, count), self.capacity
        pending = self.rank.begin("steps", order, on_progress=on_progress)
        taken = self.rank.taken  # of this call: once its result is there, another thread may begin one

        def result() -> tuple[list[Stepped], Unrunnable]:
            rest, unrunnable, forecasts = pending()
            if self.capacity != before:
                self._forecasts.clear()  # batches may be cut otherwise from now on
            self._forecasts |= forecasts
            return [*taken, *rest], unrunnable

        return result

    def begin_evaluation(
        self, requests: Mapping[JobKey, EvaluationRequest], on_progress: OnProgress
    ) -> Pending[tuple[dict[JobKey, ValidationResult], Unrunnable]]:
        """As of Replica. The rank works from now on."""
        return self.rank.begin("evaluate", dict(requests), on_progress=on_progress)

    def _refer(self, jobs: Sequence[TrainingJob]) -> None:
        """Hand over the references that have become known since these jobs were."""
        for job in jobs:
            if job.reference is not None and job.key.placement not in self._referred:
                self._referred.add(job.key.placement)
                self.rank.post("refer", job.key.placement, job.reference)
