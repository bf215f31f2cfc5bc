"""Where the adapters of a replica's jobs are stored: in its arena while they train, and while they wait until another job needs
the rows; otherwise in the parking lot, which all replicas share. Chooses no jobs."""

import logging
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from worker.adapters.arena_growth import NoRows, give_back, make_room, seated
from worker.adapters.job_checkpoint import Best, Tensors
from worker.adapters.memory_fit import MemoryFit
from worker.adapters.parking_lot import ParkingLot
from worker.adapters.warm_start import WarmStart
from worker.data.node_cache import NodeCache
from worker.executor.job_run import JobRun
from worker.model.arena import AdapterState, Arena, Slot, rows_for
from worker.model.plain.trainer import OutOfMemory
from worker.policy.admission import Capacity, rows_cap
from worker.replicas.base_loader import Base

log = logging.getLogger(__name__)


class Slots:
    """The slots of one loaded copy of a base."""

    def __init__(self, base: Base, capacity: Capacity, lot: ParkingLot, cache: NodeCache) -> None:
        self.base, self._lot, self._cache = base, lot, cache
        self.fit = MemoryFit(capacity)
        self._held: dict[JobRun, tuple[Slot, Tensor | None]] = {}  # parked in the arena, with their best weights

    @property
    def capacity(self) -> Capacity:
        return self.fit.capacity

    @property
    def empty(self) -> bool:
        """Whether the arena holds no adapter."""
        return not self._arena.slots

    def narrow(self, group: str) -> None:
        """A task has left, and holds nothing here: shrink the arena to the rows in use."""
        if self.fit.narrow(group):
            give_back(self.base.trainer)

    def tighten(self, error: OutOfMemory, runs: Sequence[JobRun]) -> dict[JobRun, str]:
        """Handle a pass of these jobs that found no memory: voids their gradients. Returns the jobs that cannot
        run, and why."""
        self.base.trainer.forget([run.slot for run in runs if run.slot is not None])
        return self.fit.tighten(error, runs, self._arena.rows)

    def stepped(self) -> bool:
        """Record a step that found its memory; whether micro-batches grew just now."""
        return self.fit.stepped(self._arena.rows)

    def start(self, start: WarmStart) -> Slot:
        """A slot that holds the adapter which a task starts from, unchanged. Raises NoRows."""
        self._make_room(start.rank, rows_for(start.rank), ())
        alpha = start.scale * start.rank
        return seated(self.base.trainer, start.rank, alpha, lambda slot: self._arena.restore(slot, AdapterState(start.rows)))

    def give(self, runs: Sequence[JobRun]) -> dict[JobRun, str]:
        """Give each job arena rows with its stored adapter, or with its first weights. Returns the jobs for which the device
        has no memory, and why: they keep waiting, and no job is admitted beyond the present rows until some are free."""
        lacking: dict[JobRun, str] = {}
        for place, run in enumerate(runs):
            if run in self._held:
                run.slot, run.best_weights = self._held.pop(run)
                continue
            wanted = sum(rows_for(later.config.rank) for later in runs[place:] if later not in self._held)
            try:
                self._make_room(run.config.rank, wanted, runs)
                run.slot = seated(self.base.trainer, run.config.rank, run.config.plain_alpha, partial(self._fill, run))
            except NoRows as error:
                log.warning("job %d of placement %s gets no slot: %s", run.index, run.group, error)
                lacking[run] = str(error)
                self.fit.limit_rows(self._arena.rows)
        return lacking

    def _fill(self, run: JobRun, slot: Slot) -> None:
        """Write the job's adapter into its slot. The lot keeps its copy until that is done."""
        tensors = self._lot.look(run)
        if tensors is None:
            self.base.trainer.init_adapter(slot, run.config.seed, run.config.target_modules)
            if run.start is not None:
                fresh = self._arena.snapshot(slot, moments=False).weights
                self._arena.restore(slot, AdapterState(run.start.onto(fresh, slot.scale)))
        else:
            self._arena.restore(slot, tensors.adapter)
            run.best_weights = tensors.best
        self._lot.leave(run)

    def _make_room(self, rank: int, wanted: int, staying: Sequence[JobRun]) -> None:
        """Make room for an adapter of this rank; evicts parked jobs that are not among `staying` before the arena exceeds
        R_cap."""

        def evict() -> bool:
            waiting = next((run for run in self._held if run not in staying), None)
            if waiting is not None:
                self.evict(waiting)
            return waiting is not None

        tokens = max(self.capacity.step_tokens, self.fit.longest)
        make_room(self.base.trainer, rank, wanted, rows_cap(self.capacity, tokens, self.fit.recomputes), evict)

    @property
    def _arena(self) -> Arena:
        return self.base.trainer.arena

    def note_best(self, run: JobRun, loss: float) -> None:
        """Record a new lowest validation loss of the job, with a host copy of its weights."""
        assert run.slot is not None, "only jobs with a slot are evaluated"
        run.best = Best(run.step, loss)
        run.best_weights = self.base.trainer.arena.snapshot(run.slot, moments=False).weights

    def park(self, run: JobRun) -> None:
        """Park the job in its arena rows, until another job needs them."""
        assert run.slot is not None, "only jobs with a slot are parked"
        self._held[run] = run.slot, run.best_weights
        run.slot, run.best_weights = None, None
        self.fit.limit_rows(None)

    def evict(self, run: JobRun) -> None:
        """Move a parked job to the lot, from where any replica may continue it."""
        if run in self._held:
            slot, best = self._held.pop(run)
            self._lot.park(run, Tensors(self._arena.snapshot(slot), best))
            self._detach(slot)

    def forget(self, run: JobRun) -> None:
        """Free everything the job holds here, and its local checkpoint."""
        self._vacate(run)
        self._lot.leave(run)
        if run.checkpoint is not None:
            self._cache.objects(run.tenant_id).drop(run.checkpoint.sha256)

    def tensors(self, run: JobRun) -> Tensors:
        """A host copy of the job's adapter as it is now."""
        if run.slot is not None:
            return Tensors(self.base.trainer.arena.snapshot(run.slot), run.best_weights)
        if run in self._held:
            slot, best = self._held[run]
            return Tensors(self.base.trainer.arena.snapshot(slot), best)
        waiting = self._lot.look(run)
        assert waiting is not None, "a job that has trained and holds no slot waits in the lot"
        return waiting

    def _vacate(self, run: JobRun) -> None:
        slot = self._held.pop(run)[0] if run in self._held else run.slot
        if slot is not None:
            self._detach(slot)
        run.slot, run.best_weights = None, None

    def _detach(self, slot: Slot) -> None:
        """Free the rows, and let jobs that found none try again."""
        self._arena.detach(slot)
        self.fit.limit_rows(None)
