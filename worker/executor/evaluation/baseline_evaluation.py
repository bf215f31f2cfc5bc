"""Evaluates the baseline of each new task, one pass at a time between the steps of others: the base's own validation loss, and
under DPO the reference log-probabilities, without which its jobs cannot step."""

import time
from collections.abc import Callable, Generator

from contract.messages.placement_messages import Placement
from contract.row_scores import RowScores
from worker.adapters.arena_growth import NoRows
from worker.data.node_cache import NodeCache
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.preparation.placement_preparation import Prepared
from worker.model.plain.trainer import OutOfMemory
from worker.policy.job_record import JobKey
from worker.replicas.device_replica import Unrunnable
from worker.replicas.dpo_loss import pair_error, pair_loss
from worker.replicas.dpo_reference import Reference, key_of, reference_passes
from worker.replicas.replica_set import Replicas
from worker.replicas.validation_pass import EvaluationRequest, evaluation_passes

Passes = Generator[None, None, None]


class Baselines:
    """The baselines under way, in turn. `on_progress` is called after each pass."""

    def __init__(self, cache: NodeCache, on_progress: Callable[[], None]) -> None:
        self._cache, self._on_progress = cache, on_progress
        self._begun: dict[str, _Baseline] = {}

    def __bool__(self) -> bool:
        """Whether one can go on now."""
        return self._next() is not None

    @property
    def lack_rows(self) -> bool:
        """Whether one found no arena rows on the first replica: jobs that come after it are to leave it those that get free."""
        return any(one.lacks_rows for one in self._begun.values())

    def __contains__(self, task: PlacementRun) -> bool:
        return task.key in self._begun

    def begin(self, replicas: Replicas, task: PlacementRun, prepared: Prepared) -> None:
        """Evaluate the task's baseline from now on, on the first replica for all."""
        self._begun[task.key] = _Baseline(replicas, task, prepared, self._cache, self._on_progress)
        task.await_base(True)

    def drop(self, task: PlacementRun) -> None:
        """The task leaves: give up its baseline."""
        baseline = self._begun.pop(task.key, None)
        if baseline is not None:
            baseline.close()
            task.await_base(False)

    def drop_unneeded(self, task: PlacementRun) -> None:
        """The task was asked to leave: do without what its next placement evaluates. There is none once no job is left to
        train."""
        if task.any_unfinished:
            self.drop(task)

    def advance(self) -> tuple[PlacementRun, Unrunnable]:
        """Run one pass of the baseline whose turn it is. Returns its task, and the jobs that cannot run for lack of memory."""
        baseline = self._next()
        assert baseline is not None, "one is to be there"
        key = baseline.task.key
        del self._begun[key]
        unrunnable = baseline.advance()
        if baseline.done:
            baseline.task.await_base(False)
        else:
            self._begun[key] = baseline  # behind the others
        return baseline.task, unrunnable

    def _next(self) -> "_Baseline | None":
        return next((one for one in self._begun.values() if not one.waits), None)


class _Baseline:
    def __init__(
        self, replicas: Replicas, task: PlacementRun, prepared: Prepared, cache: NodeCache, on_progress: Callable[[], None]
    ) -> None:
        self.task, self.done = task, False
        self._replicas, self._prepared, self._cache, self._on_progress = replicas, prepared, cache, on_progress
        self._passes: Passes | None = None
        self._rows_taken: int | None = None  # by others, of the arena, that left none for the adapter that the task starts from

    @property
    def lacks_rows(self) -> bool:
        """Whether it found none when it last tried."""
        return self._rows_taken is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for arena rows until others give some back, or keep some only until they are needed."""
        if self._rows_taken is None or not self.task.any_unfinished:
            return False
        rows_used = self._replicas.first.trainer.arena.rows_used
        return rows_used >= self._rows_taken and not self._replicas.store.may_leave(0)

    def advance(self) -> Unrunnable:
        """One pass, or none where others have the arena's rows."""
        replica, unfinished = self._replicas.first, [run.key for run in self.task.runs if run.unfinished]
        self._rows_taken = None
        jobs = [run.key for run in self.task.runs] if unfinished or self._judges else []
        try:
            _, unrunnable = replica.run_with_oom_retries(jobs, self._pass)
        except NoRows as error:
            self._passes = None
            if replica.give_way():
                return self.advance()  # at once, before generation takes them again
            if replica.empty:
                self.done = True
                return dict.fromkeys(unfinished, str(error))
            self._rows_taken = replica.trainer.arena.rows_used
            return {}
        return {key: why for key, why in unrunnable.items() if key in unfinished}

    @property
    def _judges(self) -> bool:
        """Whether jobs that did not fail, ended or not, are still to be compared with the base."""
        return not self.task.base_known and self.task.failures.keys() != self.task.configs.keys()

    def close(self) -> None:
        if self._passes is not None:
            self._passes.close()

    def _pass(self, left: list[JobKey]) -> None:
        """One pass. After one that found no memory all begin anew, with the replica's capacity of then."""
        if self._passes is None:
            self._passes = self._begin()
        try:
            if left:
                next(self._passes)
        except StopIteration:
            self.done = True
        except OutOfMemory:
            self._passes = None
            raise
        if not left:
            self.close()
            self.done = True

    def _begin(self) -> Passes:
        task, replica, began = self.task, self._replicas.first, time.time()
        if task.placement.spec.objective.type == "dpo":
            reference = yield from self._reference(task.placement)
            task.reference = reference
            for run in task.runs:
                run.refer(reference)
            if not task.base_known:
                self._record_indifference()
            task.phases.over("evaluate base", began)
        elif not task.base_known:
            request = EvaluationRequest(
                None,
                self._prepared.data.validation,
                scored=task.placement.spec.metric,
                piece_tokens=replica.tracker.piece_tokens(task.key),
                placement=task.key,
            )
            found = yield from evaluation_passes(
                replica.trainer, {task.key: request}, replica.capacity.piece_tokens, self._on_progress
            )
            task.base_evaluated(found[task.key].loss, found[task.key].scores)
            task.phases.over("evaluate base", began)

    def _record_indifference(self) -> None:
        """Under dpo the base against itself: both answers of each pair have the reward 0."""
        metric, rows = self.task.placement.spec.metric, self._prepared.data.validation
        score = pair_loss(0.0) if metric == "loss" else pair_error(0.0)
        self.task.base_evaluated(pair_loss(0.0), RowScores(metric=metric, totals=[score] * len(rows), clusters=rows.clusters))

    def _reference(self, placement: Placement) -> Generator[None, None, Reference]:
        replicas, start, data = self._replicas, self._prepared.start, self._prepared.data
        trainer, budget = replicas.first.trainer, replicas.first.capacity.piece_tokens
        key = key_of(replicas.ref, trainer.backbone.device.type, start.sha256 if start is not None else "", data)
        if placement.validation_file is not None:
            key = f"{key}-{placement.validation_file.sha256}"  # so that erasing either file erases it
        scratch = self._cache.file(placement.tenant_id, placement.train_file.sha256).references
        slot = replicas.hold(start.weights, start.scale * start.rank) if start is not None else None
        try:
            return (yield from reference_passes(trainer, slot, data, key, scratch, budget, self._on_progress))
        finally:
            if slot is not None:
                replicas.first.adapters.drop(slot)
