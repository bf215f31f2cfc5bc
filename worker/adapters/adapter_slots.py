"""Where the adapters of a replica's jobs lie: in its arena while they train, there too while they wait and nobody needs the
rows, else in the lot, which all replicas share. Chooses none."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from worker.adapters.job_checkpoint import Best, Tensors
from worker.adapters.parking_lot import ParkingLot
from worker.adapters.warm_start import WarmStart
from worker.data.object_cache import ObjectCache
from worker.executor.job_run import JobRun
from worker.model.arena import AdapterState, Slot, rows_for
from worker.policy.admission import Capacity, refitted, regrown, rows_cap
from worker.replicas.base_loader import Base

log = logging.getLogger(__name__)

_QUIET_STEPS = 100  # without trouble, after which micro-batches that were made smaller grow again


class Slots:
    """The slots of one loaded copy of a base, for as long as it is loaded."""

    def __init__(self, base: Base, capacity: Capacity, lot: ParkingLot, scratch: ObjectCache) -> None:
        self.base, self.capacity, self._lot, self._scratch = base, capacity, lot, scratch
        self._held: dict[JobRun, tuple[Slot, Tensor | None]] = {}  # parked where they are, with their best weights
        self._longest = 0  # tokens of the longest sequence of any task
        self._most_tokens = capacity.step_tokens  # of a micro-batch, where memory allows it
        self._quiet = 0  # steps since the last trouble

    def widen(self, capacity: Capacity, longest: int) -> None:
        """A task came, with sequences of up to `longest` tokens, whose rows may cost more memory: the dearer measure counts
        for all."""
        dearer = max(self.capacity, capacity, key=lambda c: c.model.per_token)
        self.capacity = replace(dearer, step_tokens=min(self.capacity.step_tokens, capacity.step_tokens))
        self._longest = max(self._longest, longest)
        model = self.capacity.model
        log.info(
            "memory: %d MiB + %.3f MiB a token + %.2f MiB a row, of %d MiB; steps of %d tokens",
            *(model.fixed // 2**20, model.per_token / 2**20, model.per_row / 2**20),
            *(self.capacity.usable_bytes // 2**20, self.capacity.step_tokens),
        )

    def tighten(self, tokens: int, runs: Sequence[JobRun]) -> list[JobRun]:
        """A pass of `tokens` tokens of these jobs found no memory: smaller micro-batches from now on. Their gradients are void.

        Returns the jobs for which no pass is small enough: they have a sequence of that length.
        """
        self.base.trainer.forget([run.slot for run in runs if run.slot is not None])
        self.capacity, self._quiet = refitted(self.capacity, tokens, self.base.trainer.arena.rows), 0
        log.warning("no memory for a pass of %d tokens; steps are cut to %d from now on", tokens, self.capacity.step_tokens)
        return [run for run in runs if run.data.longest >= tokens]

    def stepped(self) -> bool:
        """A step found its memory. After many of them, what was made smaller grows again; whether it did just now."""
        self._quiet += 1
        if self.capacity.step_tokens == self._most_tokens or self._quiet % _QUIET_STEPS:
            return False
        before = self.capacity.step_tokens
        self.capacity = regrown(self.capacity, self._most_tokens, self.base.trainer.arena.rows)
        return self.capacity.step_tokens > before

    def start(self, start: WarmStart) -> Slot:
        """A slot of its own for the adapter that a task starts from, as it is."""
        arena = self.base.trainer.arena
        if not arena.fits(start.rank):
            arena.grow(arena.rows + rows_for(start.rank))
        slot = arena.attach(start.rank, start.scale * start.rank)
        arena.restore(slot, AdapterState(start.rows))
        return slot

    def give(self, runs: Sequence[JobRun]) -> None:
        """Give each job rows of the arena with what it had, or with its first weights."""
        arena, trainer = self.base.trainer.arena, self.base.trainer
        for place, run in enumerate(runs):
            if run in self._held:
                run.slot, run.best_weights = self._held.pop(run)
                continue
            self._make_room(runs[place:])
            run.slot = arena.attach(run.config.rank, run.config.plain_alpha)
            tensors = self._lot.take(run)
            if tensors is None:
                trainer.init_adapter(run.slot, run.config.seed, run.config.target_modules)
                if run.start is not None:
                    fresh = arena.snapshot(run.slot, moments=False).weights
                    arena.restore(run.slot, AdapterState(run.start.onto(fresh, run.slot.scale)))
            else:
                arena.restore(run.slot, tensors.adapter)
                run.best_weights = tensors.best

    def _make_room(self, runs: Sequence[JobRun]) -> None:
        """For the first of these: the arena grows, at once for all of them; beyond R_cap only once nobody is parked in it."""
        arena = self.base.trainer.arena
        needed = arena.rows + sum(rows_for(run.config.rank) for run in runs if run not in self._held)
        cap = rows_cap(self.capacity, max(self.capacity.step_tokens, self._longest))
        while not arena.fits(runs[0].config.rank):
            waiting = next((run for run in self._held if run not in runs), None)
            if needed <= cap or waiting is None:
                arena.grow(needed)
            else:
                self.evict(waiting)

    def note_best(self, run: JobRun, loss: float) -> None:
        """The job's validation loss was never lower: keep a copy of its weights."""
        assert run.slot is not None, "only jobs with a slot are evaluated"
        run.best = Best(run.step, loss)
        run.best_weights = self.base.trainer.arena.snapshot(run.slot, moments=False).weights

    def park(self, run: JobRun) -> None:
        """The job waits where it is, until another needs the rows."""
        assert run.slot is not None, "only jobs with a slot are parked"
        self._held[run] = run.slot, run.best_weights
        run.slot, run.best_weights = None, None

    def evict(self, run: JobRun) -> None:
        """The job waits here no more, but in the lot, from where any replica may take it up."""
        if run in self._held:
            slot, best = self._held.pop(run)
            self._lot.park(run, Tensors(self.base.trainer.arena.snapshot(slot), best))
            self.base.trainer.arena.detach(slot)

    def forget(self, run: JobRun) -> None:
        """Give back whatever the job holds here."""
        self._vacate(run)
        self._lot.leave(run)
        if run.checkpoint is not None:
            self._scratch.drop(run.checkpoint.sha256)

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
            self.base.trainer.arena.detach(slot)
        run.slot, run.best_weights = None, None
