"""Stores the adapters of an executor's jobs and moves them between GPU, host memory and disk: one location per job, on any
replica. Chooses no jobs.

A job that trains lies in rows of a replica's arena. A parked one keeps its rows until another job needs them; then it moves to
host memory up to a budget, and to disk beyond that. Every move writes the new copy before it frees the old one.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from torch import Tensor

from worker.adapters.arena_growth import NoRows, allocate_slot, make_room
from worker.adapters.capacity_tracker import CapacityTracker
from worker.adapters.job_checkpoint import Tensors, load_tensors, save
from worker.adapters.location_types import AdapterSpec, ArenaRows, Location, OnDisk, PinnedHost, Unmade
from worker.adapters.warm_start import WarmStart
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache
from worker.model.arena import AdapterState, Slot, rows_for
from worker.model.plain.trainer import Trainer
from worker.policy.adapter_memory_model import max_arena_rows
from worker.policy.job_record import JobKey, JobProgress

log = logging.getLogger(__name__)


class AdapterStore:
    """Replicas are numbered as their trainers. The loop's thread moves adapters; replicas' threads only look at them."""

    def __init__(
        self,
        trainers: Sequence[Trainer],
        trackers: Sequence[CapacityTracker],
        host_bytes: int,
        scratch: ObjectCache,
        cache: NodeCache | None = None,
    ) -> None:
        """host_bytes: of main memory for parked adapters. cache: evicted to make room where the disk is full."""
        self._trainers, self._trackers = trainers, trackers
        self._host_bytes_left = host_bytes
        self._scratch, self._cache = scratch, cache
        self._specs: dict[JobKey, AdapterSpec] = {}
        self._locations: dict[JobKey, Location] = {}  # parked jobs in the order in which they were parked

    # ---- looking -----------------------------------------------------------------------------------------------------

    def location(self, key: JobKey) -> Location | None:
        """Where the job's adapter lies; None for a job that is not here."""
        return self._locations.get(key)

    def rows(self, key: JobKey) -> ArenaRows | None:
        """The rows in which the job trains; None for a job that does not train now."""
        at = self._locations.get(key)
        return at if isinstance(at, ArenaRows) and at.trains else None

    def best(self, key: JobKey) -> Tensor | None:
        """The best weights of a job that trains, float32 [rank, W]."""
        at = self.rows(key)
        return at.best if at is not None else None

    def trained_in(self, key: JobKey) -> tuple[int, int] | None:
        """The arena rows, [first, stop), of a job that trains."""
        at = self.rows(key)
        return (at.slot.row, at.slot.row + at.slot.rank) if at is not None else None

    def tensors(self, key: JobKey) -> Tensors:
        """A host copy of the job's adapter as it is now, wherever it lies."""
        match self._locations[key]:
            case ArenaRows() as at:
                return Tensors(self._trainers[at.replica].arena.snapshot(at.slot), at.best)
            case PinnedHost(tensors):
                return tensors
            case OnDisk(path):
                return load_tensors(path)
            case Unmade():
                raise ValueError(f"{key} has no adapter yet")

    # ---- arrival and departure ---------------------------------------------------------------------------------------

    def add(self, key: JobKey, spec: AdapterSpec, checkpoint: Path | None = None, drawn: Tensor | None = None) -> None:
        """Take a job in. Its adapter is that of the checkpoint, which is read when the job gets rows; else its first weights:
        `drawn`, float32 [rank, W], where the host's budget holds them, or drawn when it gets rows."""
        self._specs[key] = spec
        self._locations[key] = OnDisk(checkpoint) if checkpoint is not None else Unmade()
        if checkpoint is None and drawn is not None and drawn.nbytes <= self._host_bytes_left:
            self._host_bytes_left -= drawn.nbytes
            self._locations[key] = PinnedHost(Tensors(AdapterState(drawn), None))

    def remove(self, key: JobKey) -> None:
        """Free everything that the job holds."""
        at = self._locations.pop(key, None)
        self._specs.pop(key, None)
        if at is not None:
            self._free(at)

    # ---- moving ------------------------------------------------------------------------------------------------------

    def allocate_rows(self, replica: int, keys: Sequence[JobKey]) -> dict[JobKey, str]:
        """Give each job rows on this replica, with its stored adapter or its first weights. Returns the jobs for which the
        device has no memory, and why: they keep waiting, and no job is admitted beyond the present rows until some are free."""
        for key in keys:
            at = self._locations[key]
            if isinstance(at, ArenaRows) and at.replica != replica:
                self.evict(key)
        lacking: dict[JobKey, str] = {}
        for place, key in enumerate(keys):
            at = self._locations[key]
            if isinstance(at, ArenaRows):
                self._locations[key] = replace(at, trains=True)
                continue
            wanted = sum(rows_for(self._specs[later].rank) for later in keys[place:] if not self._in_arena(later))
            try:
                self._allocate(replica, key, at, wanted, keys)
            except NoRows as error:
                log.warning("%s: no memory for adapter rows: %s", key, error)
                lacking[key] = str(error)
                self._trackers[replica].limit_rows(self._trainers[replica].arena.rows)
        return lacking

    def _allocate(self, replica: int, key: JobKey, at: Location, wanted: int, staying: Sequence[JobKey]) -> None:
        trainer, spec = self._trainers[replica], self._specs[key]
        self._make_room(replica, spec.rank, wanted, staying)
        slot, best = allocate_slot(trainer, spec.rank, spec.alpha, partial(self._fill, trainer, key))
        self._locations[key] = ArenaRows(replica, slot, best=best)
        self._free(at)

    def note_best(self, key: JobKey) -> None:
        """Keep a host copy of the weights of a job that trains, as its best so far."""
        at = self._training(key)
        weights = self._trainers[at.replica].arena.snapshot(at.slot, moments=False).weights
        self._locations[key] = replace(at, best=weights)

    def park(self, key: JobKey) -> None:
        """Stop training the job. It keeps its rows until another job needs them."""
        at = self._training(key)
        del self._locations[key]  # so that it is the last of those parked
        self._locations[key] = replace(at, trains=False)
        self._trackers[at.replica].limit_rows(None)

    def evict(self, key: JobKey) -> None:
        """Move a parked job out of the arena, to where every replica may continue it."""
        at = self._locations[key]
        if isinstance(at, ArenaRows) and not at.trains:
            self._locations[key] = self._stored(Tensors(self._trainers[at.replica].arena.snapshot(at.slot), at.best))
            self._free(at)

    # ---- a start that no job owns ------------------------------------------------------------------------------------

    def hold_start(self, replica: int, start: WarmStart) -> Slot:
        """Rows that hold the adapter which a task starts from, unchanged, until `drop_start`. Raises NoRows."""
        trainer = self._trainers[replica]
        self._make_room(replica, start.rank, rows_for(start.rank), ())
        state, alpha = AdapterState(start.rows), start.scale * start.rank
        return allocate_slot(trainer, start.rank, alpha, lambda slot: trainer.arena.restore(slot, state))[0]

    def drop_start(self, replica: int, slot: Slot) -> None:
        self._trainers[replica].arena.detach(slot)

    # ---- rows, memory and disk ---------------------------------------------------------------------------------------

    def _in_arena(self, key: JobKey) -> bool:
        return isinstance(self._locations[key], ArenaRows)

    def _training(self, key: JobKey) -> ArenaRows:
        at = self.rows(key)
        if at is None:
            raise ValueError(f"{key} has no rows to train in")
        return at

    def _fill(self, trainer: Trainer, key: JobKey, slot: Slot) -> Tensor | None:
        """Write the job's adapter into its rows. Returns its best weights."""
        if isinstance(self._locations[key], Unmade):
            trainer.arena.restore(slot, AdapterState(self._specs[key].first_weights(trainer.arena.layout)))
            return None
        tensors = self.tensors(key)
        trainer.arena.restore(slot, tensors.adapter)
        return tensors.best

    def _make_room(self, replica: int, rank: int, wanted: int, staying: Sequence[JobKey]) -> None:
        """Make room for an adapter of this rank; evicts parked jobs that are not among `staying` before the arena exceeds
        R_cap."""

        def evict() -> bool:
            here = ((key, at) for key, at in self._locations.items() if isinstance(at, ArenaRows) and at.replica == replica)
            waiting = next((key for key, at in here if not at.trains and key not in staying), None)
            if waiting is not None:
                self.evict(waiting)
            return waiting is not None

        tracker = self._trackers[replica]
        tokens = max(tracker.capacity.pass_budget, tracker.longest)
        make_room(self._trainers[replica], rank, wanted, max_arena_rows(tracker.capacity, tokens, tracker.recomputes), evict)

    def _stored(self, tensors: Tensors) -> PinnedHost | OnDisk:
        """Host memory within the budget, else a file; memory again where the disk is full."""
        if tensors.bytes > self._host_bytes_left:
            file = self._written(tensors)
            if file is not None:
                return file
        self._host_bytes_left -= tensors.bytes
        return PinnedHost(tensors)

    def _written(self, tensors: Tensors) -> OnDisk | None:
        """A file of these tensors; None where the disk is full even after evicting the cache."""
        name = f"parked-{uuid4().hex}"  # not by content: equal jobs must not share one file
        for last in (False, True):
            try:
                return OnDisk(self._scratch.keep(lambda path: save(path, JobProgress(), tensors), name).path, name)
            except DiskFull as error:
                if last or self._cache is None or not self._cache.evict(0):
                    log.warning("a parked job stays in memory, beyond MOTET_WORKER_PARK_BYTES: %s", error)
                    return None
        return None

    def _free(self, at: Location) -> None:
        """Free a place that a job has left. Freed rows let jobs that found none try again."""
        match at:
            case ArenaRows():
                self._trainers[at.replica].arena.detach(at.slot)
                self._trackers[at.replica].limit_rows(None)
            case PinnedHost(tensors):
                self._host_bytes_left += tensors.bytes
            case OnDisk(_, name) if name is not None:
                self._scratch.drop(name)
