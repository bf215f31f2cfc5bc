"""The adapters in one replica's arena: given rows, copied to the host, freed. Lives beside its device, in whatever process that
is. Chooses no jobs: who may lose its rows to another is the caller's to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from torch import Tensor

from worker.adapters.arena_growth import NoRows, allocate_slot, make_room
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors, UnreadableWeights, load_tensors, mean_of
from worker.adapters.location_types import AdapterSpec
from worker.adapters.lowest_reading import LowestReading
from worker.adapters.weights_copies import WeightsCopies, WeightsCopy, itself
from worker.model.arena import AdapterState, Slot, rows_for
from worker.model.plain.trainer import Trainer
from worker.policy.adapter_memory_model import max_arena_rows
from worker.policy.job_record import JobKey

_SPARE = 1 / 32  # of the usable memory, for rows that nobody has
Source = Tensors | Path | None  # what an adapter is filled with: a host copy, a checkpoint's file, or its first weights


@dataclass(frozen=True)
class Allocated:
    """lacking: why the device had no memory for the rows; None where it had. evicted: host copies of the adapters that lost
    their rows, whether that sufficed or not. lost: it is no memory that lacks, but the file of the adapter cannot be read."""

    lacking: str | None = None
    evicted: dict[JobKey, Tensors] = field(default_factory=dict)
    lost: bool = False


class ReplicaAdapters(Protocol):
    """The adapters of one replica, as the store sees them."""

    def allocate(
        self, key: JobKey, spec: AdapterSpec, source: Source, wanted: int, may_leave: Sequence[JobKey]
    ) -> Allocated: ...
    def begin_tensors(self, keys: Sequence[JobKey], bare: bool) -> Callable[[], dict[JobKey, Tensors]]: ...
    def read_lowest(self, key: JobKey, count: int) -> None: ...
    def lowest_read(self, key: JobKey) -> bool: ...
    def mean_weights(self, key: JobKey, count: int) -> Tensor | None: ...
    def rows(self, key: JobKey) -> tuple[int, int]: ...
    def note_lowest(self, key: JobKey, place: int, most: int) -> None: ...
    def restore_mean(self, key: JobKey, count: int) -> bool: ...
    def park(self, key: JobKey) -> None: ...
    def evict(self, key: JobKey) -> Tensors: ...
    def free(self, key: JobKey) -> None: ...


@dataclass
class _Held:
    """copies: of its weights at its lowest losses, in their order. reading: of these, once it was asked for."""

    slot: Slot
    copies: list[WeightsCopy] = field(default_factory=list)
    reading: LowestReading | None = None

    def first_lowest(self, count: int) -> tuple[Tensor, ...]:
        return tuple(copy.read() for copy in self.copies[:count])

    def beside(self, adapter: AdapterState) -> Tensors:
        """Of its present weights and moments, with all those at its lowest losses."""
        try:
            return Tensors(adapter, self.first_lowest(len(self.copies)))
        except UnreadableWeights as error:
            return Tensors(adapter, lost=str(error))

    def let_go(self, most: int = 0) -> None:
        """Give up all but the first so many."""
        for copy in self.copies[most:]:
            copy.let_go()
        del self.copies[most:]


class ArenaAdapters:
    def __init__(self, trainer: Trainer, tracker: CapacityTracker, scratch: Path) -> None:
        """scratch: a folder for copies that main memory is not to hold."""
        self._trainer, self._tracker = trainer, tracker
        self._lowest = WeightsCopies("weights at the lowest losses", tracker.capacity.lowest_bytes, scratch)
        self._held: dict[JobKey, _Held] = {}

    def slot(self, key: JobKey) -> Slot:
        """Where the job's adapter lies."""
        return self._held[key].slot

    def slots(self, keys: Sequence[JobKey]) -> list[Slot]:
        """Those of these jobs that have rows here."""
        return [self._held[key].slot for key in keys if key in self._held]

    def allocate(self, key: JobKey, spec: AdapterSpec, source: Source, wanted: int, may_leave: Sequence[JobKey]) -> Allocated:
        """Give the job rows with this adapter. wanted: rows by which the arena may grow, for those that come next. may_leave:
        adapters that may lose their rows to it, in this order, before the arena exceeds R_cap or where it cannot grow.

        Where the device has no memory, no job is admitted beyond the present rows until some are free; if any are taken."""
        evicted: dict[JobKey, Tensors] = {}
        try:
            self._make_room(spec.rank, wanted, may_leave, evicted)
            slot, lowest = allocate_slot(self._trainer, spec.rank, spec.alpha, lambda slot: self._fill(slot, spec, source))
        except NoRows as error:
            self._tracker.limit_rows(self._trainer.arena.rows if self._trainer.arena.slots else None)
            return Allocated(str(error), evicted)
        except UnreadableWeights as error:
            return Allocated(str(error), evicted, lost=True)
        self._held[key] = held = _Held(slot)
        for weights in lowest:
            held.copies.append(self._lowest.keep(partial(itself, weights), weights.nbytes))
        return Allocated(None, evicted)

    def _fill(self, slot: Slot, spec: AdapterSpec, source: Source) -> tuple[Tensor, ...]:
        """Write the adapter into its rows. Returns its weights at its lowest losses."""
        arena = self._trainer.arena
        if source is None:
            arena.restore(slot, AdapterState(spec.first_weights(arena.layout)))
            return ()
        tensors = load_tensors(source) if isinstance(source, Path) else source
        arena.restore(slot, tensors.adapter)
        return tensors.lowest

    def tensors(self, keys: Sequence[JobKey], bare: bool = False) -> dict[JobKey, Tensors]:
        """Host copies of the jobs' adapters as they are now. bare: of their weights alone."""
        arena, held = self._trainer.arena, {key: self._held[key] for key in keys}
        states = {key: arena.snapshot(one.slot, moments=not bare) for key, one in held.items()}
        return {key: Tensors(state) if bare else held[key].beside(state) for key, state in states.items()}

    def begin_tensors(self, keys: Sequence[JobKey], bare: bool) -> Callable[[], dict[JobKey, Tensors]]:
        """The same, copied when the result is asked for; in another process, from now on."""
        return lambda: self.tensors(keys, bare)

    def read_lowest(self, key: JobKey, count: int) -> None:
        """Read the mean of the job's weights at its so many lowest losses, and those at the lowest, beside the caller:
        `mean_weights` and `restore_mean` have them then, until the job is freed. It trains no more."""
        held = self._held[key]
        held.reading = LowestReading(held.copies[:count])

    def lowest_read(self, key: JobKey) -> bool:
        """Whether what `read_lowest` began is over."""
        reading = self._held[key].reading
        return reading is None or reading.over

    def mean_weights(self, key: JobKey, count: int) -> Tensor | None:
        """The mean of the job's weights, float32 [rank, W], at its so many lowest losses; None before the first. Waits where
        they are being read. Raises UnreadableWeights, and so does `restore_mean`."""
        held = self._held[key]
        read = held.reading.mean(count) if held.reading is not None else None
        return read if read is not None else mean_of(held.first_lowest(count))

    def rows(self, key: JobKey) -> tuple[int, int]:
        """The arena rows, [first, stop), of the adapter."""
        used = self.slot(key).used
        return used.start, used.stop

    def note_lowest(self, key: JobKey, place: int, most: int) -> None:
        """Keep a host copy of the job's weights, whose loss has this place, from 0, among its lowest, and of the first `most`
        alone, of which it is one. It may be under way yet, or lie in a file."""
        held, arena = self._held[key], self._trainer.arena
        held.let_go(most - 1)  # before there is the new one, which may take that memory
        size = 4 * held.slot.rank * arena.layout.width
        held.copies.insert(place, self._lowest.keep(arena.begin_snapshot(held.slot), size))

    def restore_mean(self, key: JobKey, count: int) -> bool:
        """Write the mean of the job's weights at its so many lowest losses into its rows, for good: it ends. Whether it has
        any."""
        weights = self.mean_weights(key, count)
        if weights is not None:
            self._trainer.arena.restore(self._held[key].slot, AdapterState(weights))
        return weights is not None

    def park(self, key: JobKey) -> None:
        """The job trains no more, and keeps its rows until another needs them: jobs that found none may try again."""
        assert key in self._held, "only a job with rows is parked"
        self._tracker.limit_rows(None)

    def evict(self, key: JobKey) -> Tensors:
        """Take the adapter out of the arena."""
        tensors = self.tensors([key])[key]
        self.free(key)
        return tensors

    def free(self, key: JobKey) -> None:
        """Free the job's rows. Freed rows let jobs that found none try again."""
        held = self._held.pop(key)
        held.let_go()
        self._trainer.arena.detach(held.slot)
        self._tracker.limit_rows(None)

    # ---- adapters that no job trains ---------------------------------------------------------------------------------

    def hold(self, weights: Tensor, alpha: float, may_leave: Sequence[JobKey], evicted: dict[JobKey, Tensors]) -> Slot:
        """Arena rows that hold these weights, float32 [rank, W], until `drop`; adds the adapters that lost their rows to
        `evicted`. Raises NoRows."""
        rank, state = weights.shape[0], AdapterState(weights)
        self._make_room(rank, rows_for(rank), may_leave, evicted)
        return allocate_slot(self._trainer, rank, alpha, lambda slot: self._trainer.arena.restore(slot, state))[0]

    def drop(self, slot: Slot) -> None:
        self._trainer.arena.detach(slot)
        self._tracker.limit_rows(None)

    @property
    def spare_rows(self) -> int:
        """Free rows that the arena may keep for those who join: buffers that stay where they are keep captured graphs."""
        return int(_SPARE * self._tracker.capacity.usable_bytes // self._trainer.arena.bytes_per_row)

    def _make_room(self, rank: int, wanted: int, may_leave: Sequence[JobKey], evicted: dict[JobKey, Tensors]) -> None:
        leaving = iter(may_leave)

        def evict() -> bool:
            key = next(leaving, None)
            if key is not None:
                evicted[key] = self.evict(key)
            return key is not None

        tracker = self._tracker
        tokens = max(tracker.capacity.pass_budget, tracker.longest)
        cap = max_arena_rows(tracker.capacity, tokens, tracker.recomputes)
        make_room(self._trainer, rank, wanted, cap, self.spare_rows, evict)
