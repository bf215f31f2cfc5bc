"""The replicas of an executor's base, one on each of its devices: which holds which job, and running all in parallel.

Adapter parallelism: a job is on one replica as a whole, so nothing crosses between devices. Jobs are assigned on admission
(policy/replica_assignment.py) and move only between steps, as host copies. Results come back in the caller's order, whichever
replica finished first.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import TypeVar

from contract.wire import BaseModelRef
from worker.adapters.adapter_slots import Slots
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.parking_lot import ParkingLot
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache
from worker.executor.job_run import JobRun
from worker.executor.placement_preparation import Prepared
from worker.policy.activations import Need
from worker.policy.admission import Demand, refusal
from worker.policy.replica_assignment import Load, deal, takeover
from worker.replicas.device_replica import Hopeless, Replica, Tick
from worker.replicas.packed_step import Stepped
from worker.replicas.validation_pass import ValidationResult

log = logging.getLogger(__name__)

T = TypeVar("T")


class Replicas:
    """All replicas of one loaded base. The first replica works in the caller's thread."""

    def __init__(self, prepared: Prepared, scratch: ObjectCache, cache: NodeCache) -> None:
        self.bases = prepared.bases
        self._lot = ParkingLot(prepared.capacities[0].park_bytes, scratch, cache)
        made = zip(prepared.bases, prepared.capacities, strict=True)
        self._all = [Replica(Slots(base, capacity, self._lot, cache), at > 0) for at, (base, capacity) in enumerate(made)]
        self._homes: dict[JobRun, Replica] = {}  # the replica of each job that had a slot

    @property
    def ref(self) -> BaseModelRef:
        return self.bases[0].ref

    @property
    def first(self) -> Replica:
        """The replica that measures what is the same on all."""
        return self._all[0]

    # ---- which job where -------------------------------------------------------------------------------------------

    def widen(self, group: str, runs: Sequence[JobRun], prepared: Prepared) -> None:
        """Add a task with these jobs. Their warm start and checkpoints stay where they are until the jobs get slots."""
        rows = tuple(run.demand.rows for run in runs)
        for replica, capacity in zip(self._all, prepared.capacities, strict=True):
            replica.slots.fit.widen(group, Need(capacity, prepared.data.longest, rows, prepared.activations))
        for run in runs:
            run.start = prepared.start
            if run.index in prepared.checkpoints:
                self._lot.adopt(run, prepared.checkpoints[run.index][0])

    def narrow(self, group: str) -> None:
        """Remove a task that has left and whose jobs are forgotten."""
        for replica in self._all:
            replica.slots.narrow(group)

    def refused(self, runs: Sequence[JobRun]) -> Hopeless:
        """The jobs that fit on no replica, even alone, and why."""
        return {run: why for run in runs if (why := self._refusal(run.demand)) is not None}

    def _refusal(self, demand: Demand) -> str | None:
        whys = [refusal(demand, replica.slots.capacity) for replica in self._all]
        return None if None in whys else whys[0]

    def admit(self, active: Sequence[JobRun], waiting: Sequence[JobRun]) -> tuple[list[JobRun], Hopeless]:
        """Give slots to the waiting jobs that the policy admits. Returns these jobs, and those for which an empty replica has
        no memory. A job that waited in one replica's arena may continue in another's."""
        dealt = deal(self._loads(active), [run.demand for run in waiting])
        given, hopeless = set[JobRun](), Hopeless()
        for replica, demands in zip(self._all, dealt, strict=True):
            keys = {demand.key for demand in demands}
            runs = [run for run in waiting if run in keys]
            for run in runs:
                if self._home(run) is not replica:
                    self._home(run).slots.evict(run)
                self._homes[run] = replica
            lacking = replica.slots.give(runs)
            if replica.slots.empty:
                hopeless |= lacking
            given.update(run for run in runs if run not in lacking)
        return [run for run in waiting if run in given], hopeless

    def even(self, active: Sequence[JobRun]) -> bool:
        """Move running jobs from replicas with much left to replicas with little. Whether a moved job found no memory and
        waits."""
        while (move := takeover(self._loads(active))) is not None:
            (run,) = (run for run in active if run is move.demand.key)
            giver, taker = self._all[move.giver].slots, self._all[move.taker].slots
            log.info("job %d of placement %s is taken over by replica %d", run.index, run.group, move.taker)
            giver.park(run)
            giver.evict(run)
            self._homes[run] = self._all[move.taker]
            if taker.give([run]):
                return True
        return False

    def note_best(self, run: JobRun, loss: float) -> None:
        self._home(run).slots.note_best(run, loss)

    def park(self, run: JobRun) -> None:
        self._home(run).slots.park(run)

    def forget(self, run: JobRun) -> None:
        """Free everything the job holds."""
        self._home(run).slots.forget(run)
        self._homes.pop(run, None)

    def tensors(self, run: JobRun) -> Tensors:
        """A host copy of the job's adapter as it is now."""
        return self._home(run).slots.tensors(run)

    def _home(self, run: JobRun) -> Replica:
        return self._homes.get(run, self.first)

    def _loads(self, active: Sequence[JobRun]) -> list[Load]:
        shares = self._shares(active)
        return [Load(tuple(run.demand for run in shares[replica]), replica.slots.capacity) for replica in self._all]

    def _shares(self, runs: Sequence[JobRun]) -> dict[Replica, list[JobRun]]:
        return {replica: [run for run in runs if self._homes[run] is replica] for replica in self._all}

    # ---- all at once -----------------------------------------------------------------------------------------------

    def step(self, runs: Sequence[JobRun], tick: Tick) -> tuple[Stepped, Hopeless]:
        """One optimizer step of each of these jobs, without those lacking memory. `seconds`: until the last
        replica was done."""
        began = time.monotonic()
        done = self._together(lambda replica, own: replica.step(own, tick), runs)
        whole, hopeless = Stepped({}, 0.0), Hopeless()
        for stepped, lost in done:
            whole.losses |= stepped.losses
            whole.preferences |= stepped.preferences
            hopeless |= lost
            for group, work in stepped.work.items():
                whole.work[group].add(work)
        whole.losses = {run: whole.losses[run] for run in runs if run in whole.losses}
        whole.seconds = time.monotonic() - began
        return whole, hopeless

    def examine(self, runs: Sequence[JobRun], tick: Tick) -> tuple[Mapping[JobRun, ValidationResult], Hopeless]:
        """Validation losses of these jobs."""
        found, hopeless = dict[JobRun, ValidationResult](), Hopeless()
        for results, lost in self._together(lambda replica, own: replica.examine(own, tick), runs):
            found |= results
            hopeless |= lost
        return {run: found[run] for run in runs if run in found}, hopeless

    def stepped(self, runs: Sequence[JobRun]) -> bool:
        """Record a step of these jobs; whether the micro-batches of any replica grew just now."""
        return any([replica.slots.stepped() for replica, own in self._shares(runs).items() if own])

    def _together(self, work: Callable[[Replica, list[JobRun]], T], runs: Sequence[JobRun]) -> list[T]:
        """Run `work` in parallel on each replica that holds any of these jobs. Waits for all replicas before it raises an
        error."""
        shares = {replica: own for replica, own in self._shares(runs).items() if own}
        begun = {replica: replica.hand.submit(work, replica, own) for replica, own in shares.items() if replica.hand}
        try:
            done = {replica: work(replica, own) for replica, own in shares.items() if replica.hand is None}
        finally:
            wait(begun.values())
        return [begun[replica].result() if replica in begun else done[replica] for replica in shares]
