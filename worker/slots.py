"""Where the adapters of an executor's jobs lie: in the arena while they train, in the lot while they wait. Chooses none."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from worker.base import Base
from worker.checkpoint import Best, Tensors
from worker.job_run import JobRun
from worker.model.arena import AdapterState, Slot, rows_for
from worker.parking import ParkingLot
from worker.policy.admission import Capacity, refitted
from worker.profile import park_bytes
from worker.scratch import Scratch
from worker.warm_start import WarmStart

log = logging.getLogger(__name__)


class Slots:
    """The slots of one loaded base, for as long as it is loaded."""

    def __init__(self, base: Base, capacity: Capacity, scratch: Scratch) -> None:
        self.base, self.capacity, self._scratch = base, capacity, scratch
        self._lot = ParkingLot(park_bytes(capacity.memory_bytes), scratch)

    def widen(self, capacity: Capacity) -> None:
        """A task came whose rows may cost more memory: the dearer measure counts for all."""
        dearer = max(self.capacity, capacity, key=lambda c: c.model.per_token)
        self.capacity = replace(dearer, step_tokens=min(self.capacity.step_tokens, capacity.step_tokens))
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
        slots = [run.slot for run in runs if run.slot is not None]
        self.base.trainer.forget(slots)
        self.capacity = refitted(self.capacity, tokens, sum(slot.rows for slot in slots))
        log.warning("no memory for a pass of %d tokens; steps are cut to %d from now on", tokens, self.capacity.step_tokens)
        return [run for run in runs if run.data.longest >= tokens]

    def adopt(self, run: JobRun, checkpoint: Path) -> None:
        """The job's adapter is in this file, and stays there until it gets a slot."""
        self._lot.adopt(run, checkpoint)

    def start(self, start: WarmStart) -> Slot:
        """A slot of its own for the adapter that a task starts from, as it is."""
        arena = self.base.trainer.arena
        if not arena.fits(start.rank):
            arena.grow(arena.rows + rows_for(start.rank))
        slot = arena.attach(start.rank, start.scale * start.rank)
        arena.restore(slot, AdapterState(start.rows))
        return slot

    def give(self, runs: Sequence[JobRun]) -> None:
        """Give each job rows of the arena, which grows if it must, with what it had or with its first weights."""
        arena, trainer = self.base.trainer.arena, self.base.trainer
        for run in runs:
            if not arena.fits(run.config.rank):
                arena.grow(arena.rows + sum(rows_for(r.config.rank) for r in runs if r.slot is None))
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

    def note_best(self, run: JobRun, loss: float) -> None:
        """The job's validation loss was never lower: keep a copy of its weights."""
        assert run.slot is not None, "only jobs with a slot are evaluated"
        run.best = Best(run.step, loss)
        run.best_weights = self.base.trainer.arena.snapshot(run.slot, moments=False).weights

    def park(self, run: JobRun) -> None:
        """The slot is free for another; the job's rows and moments wait on the host."""
        self._lot.park(run, self.tensors(run))
        self._vacate(run)

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
        waiting = self._lot.look(run)
        assert waiting is not None, "a job that has trained and holds no slot waits in the lot"
        return waiting

    def _vacate(self, run: JobRun) -> None:
        if run.slot is not None:
            self.base.trainer.arena.detach(run.slot)
        run.slot, run.best_weights = None, None
