"""Runs the evaluations of an executor's jobs, and counts their cost: of each job's trend on a few rows, and full ones at a rung
(where the budget has them: `full_at_rungs`) and of the best weights of a job that ends (contract/evaluation_plan.py). Ends no
job: the training loop asks the policies."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from contract.row_scores import RowScores
from worker.executor.attached_placements import AttachedPlacements
from worker.executor.placement.job_run import JobRun
from worker.policy.early_exit.policy_interface import Verdict
from worker.policy.job_record import BestEvaluated, JobKey, keeps_adapter
from worker.replicas.device_replica import Unrunnable
from worker.replicas.replica_set import Replicas
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settled:
    """The adapter of a job that ends. weights: float32 [rank, W]; None where no adapter is kept. averaged: the steps after
    which the job had the weights whose mean these are; none where they are those of one step. scores: of a full evaluation.
    lost: its weights could not be read back."""

    weights: Tensor | None = None
    averaged: tuple[int, ...] = ()
    scores: RowScores | None = None
    lost: bool = False


def takes_lowest(run: JobRun, verdict: Verdict | None) -> bool:
    """Whether the adapter of a job that ends is one of its weights at its lowest losses, or their mean: else there is none, or
    the one that was ranked."""
    ranked_out = verdict is not None and verdict.keeps_adapter_though_ranked_out
    return keeps_adapter(verdict, run.best) and not ranked_out


class JobEvaluations:
    """`on_progress` is called after each pass, `on_evaluated` after an evaluation: its seconds, and the tokens by placement."""

    def __init__(
        self,
        attached: AttachedPlacements,
        on_progress: Callable[[], None],
        on_evaluated: Callable[[float, Mapping[str, int]], None],
    ) -> None:
        self._attached, self._on_progress, self._on_evaluated = attached, on_progress, on_evaluated

    def after_step(self, replicas: Replicas, due: Sequence[JobRun]) -> tuple[Mapping[JobKey, ValidationResult], Unrunnable]:
        """Evaluate the jobs with their weights as they are: at a rung in full, with the trend's rows as a part."""
        full = {run.key: run.schedule.full_at_rungs and run.rung() is not None for run in due}
        return self._evaluate(replicas, {run.key: run.evaluation_request(full[run.key]) for run in due})

    def settle_best(self, replicas: Replicas, run: JobRun, verdict: Verdict | None) -> Settled:
        """Of a job that is about to end: choose its adapter, and replace `run.best`, whose loss is of its trend's rows, by that
        of a full evaluation, or, of a job that is ranked out, by the loss at the rung that it was ranked by. Where that one
        keeps an adapter, it is the one that was ranked: the job may be parked, where no other weights can be evaluated."""
        if not takes_lowest(run, verdict):
            if run.rung() is not None and run.progress.rung_losses:
                run.apply(BestEvaluated(run.step, run.progress.rung_losses[-1]))
            if not keeps_adapter(verdict, run.best):
                return Settled()
            ranked = replicas.store.weights([run.key]).get(run.key)
            return Settled(ranked, scores=run.progress.boundary_scores, lost=ranked is None)
        count, result = self._averaged(replicas, run)
        if count > 1 and not run.trend_is_all:
            result = self._evaluated_in_full(replicas, run)
        if result is None or not math.isfinite(result.loss):
            count = 1
        if count == 1:
            result = self._fully_evaluated_best(replicas, run)
        steps = tuple(sorted(one.step for one in run.progress.lowest[:count])) if count > 1 else ()
        weights = replicas.store.mean_weights(run.key, count)
        if run.key in replicas.store.lost:
            return Settled(lost=True)
        if result is None or run.best is None:
            return Settled(weights, steps)
        run.apply(BestEvaluated(run.best.step, result.loss))
        return Settled(weights, steps, result.scores)

    def _averaged(self, replicas: Replicas, run: JobRun) -> tuple[int, ValidationResult | None]:
        """Of how many of the weights of a job that ends, those with the lowest losses, its adapter is the mean: of all that are
        kept, where the mean has a lower loss on its trend's rows than any of them; else of the best alone. The job's rows hold
        the mean then. With what it has on these rows."""
        lowest = run.progress.lowest
        if len(lowest) < 2 or not replicas.store.restore_mean(run.key, len(lowest)):
            return 1, None
        found, _ = self._evaluate(replicas, {run.key: run.evaluation_request(False)})
        result = found.get(run.key)
        if result is None or not (result.part or result).loss < lowest[0].val_loss:
            return 1, None
        return len(lowest), result

    def _fully_evaluated_best(self, replicas: Replicas, run: JobRun) -> ValidationResult | None:
        """Evaluate in full the best weights of a job that ends. None where the job does not train, or where the device had no
        memory. The job's rows hold its best weights then."""
        known = run.full_evaluation_at_boundary
        if known is not None:
            return known
        if not replicas.store.restore_mean(run.key, 1):
            return None
        return self._evaluated_in_full(replicas, run)

    def _evaluated_in_full(self, replicas: Replicas, run: JobRun) -> ValidationResult | None:
        """Evaluate in full the weights that the job's rows hold. None where the device had no memory."""
        found, unrunnable = self._evaluate(replicas, {run.key: run.evaluation_request(True)})
        for key, why in unrunnable.items():
            log.warning("the adapter of %s has no full evaluation: %s", key, why)
        return found.get(run.key)

    def _evaluate(
        self, replicas: Replicas, requests: Mapping[JobKey, EvaluationRequest]
    ) -> tuple[Mapping[JobKey, ValidationResult], Unrunnable]:
        began = time.monotonic()
        found, unrunnable = replicas.evaluate(requests, self._on_progress)
        seconds, tokens = time.monotonic() - began, Counter[str]()
        for key, result in found.items():
            tokens[key.placement] += result.tokens
        for placement, own in tokens.items():
            self._attached[placement].count_evaluation(seconds * own / max(1, tokens.total()), own)
        self._on_evaluated(seconds, tokens)
        return found, unrunnable
