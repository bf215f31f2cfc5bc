"""ALTO's Algorithm 1 (section 5), verbatim, and its selection at the warmup boundary by rank.

Pure: losses and counts in, verdicts with their evidence out. Knows no tensors, no steps and no trainer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from contract.states import ExitReason
from worker.policy.early_exit.policy_interface import Evidence, History, Standing, Verdict, non_finite_verdict, slope
from worker.policy.early_exit.ranking import Measure, Order, Place, by_losses, ranking


class Alto:
    """ALTO's Algorithm 1: divergence and overfitting at each evaluation, underperformance at the warmup boundary. metric: the
    text metric that ranks jobs there; None: their validation losses."""

    def __init__(self, parameters: EarlyExitPolicy, metric: str | None = None) -> None:
        self._p, self._metric = parameters, metric

    def on_evaluation(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        """Lines 1-14, run after an evaluation. `train_loss` is the smoothed training loss at that step."""
        diverged = non_finite_verdict("train_loss", train_loss) or non_finite_verdict("val_loss", val_loss)
        if diverged:
            return history, diverged
        window = self._p.window
        lowest = history.best is None or val_loss < history.best
        history = replace(
            history,
            train=(*history.train, train_loss)[-window:],
            val=(*history.val, val_loss)[-window:],
            best=val_loss if lowest else history.best,
            stale=0 if lowest else history.stale + 1,
        )
        history, verdict = self._diverging(history)
        if verdict is None:
            history, verdict = self._overfitting(history)
        return history, verdict if self._guard_passed(history) else None

    def _window_evidence(self, history: History) -> Evidence:
        """The window of losses behind a verdict, with its slopes."""
        enough = len(history.val) == self._p.window
        return {
            "train_window": list(history.train),
            "val_window": list(history.val),
            "train_slope": slope(history.train) if enough else None,
            "val_slope": slope(history.val) if enough else None,
            "best_val_loss": history.best,
            "evaluations_since_best": history.stale,
        }

    def _diverging(self, history: History) -> tuple[History, Verdict | None]:
        p = self._p
        if len(history.val) < p.window:
            return history, None
        rising = slope(history.train) >= p.tau_slope and slope(history.val) >= p.tau_slope
        count = history.diverging + 1 if rising else 0
        history = replace(history, diverging=count)
        if count < p.patience_divergence:
            return history, None
        return history, Verdict(
            ExitReason.DIVERGING,
            {
                "pattern": "training and validation loss both rise",
                "tau_slope": p.tau_slope,
                "consecutive": count,
                "patience": p.patience_divergence,
                **self._window_evidence(history),
            },
        )

    def _overfitting(self, history: History) -> tuple[History, Verdict | None]:
        p = self._p
        train, val = history.train[-1], history.val[-1]
        gap = (val - train) / train if train else math.inf
        count = history.overfitting + 1 if gap > p.tau_gap else 0
        history = replace(history, overfitting=count)
        if count < p.patience_overfitting:
            return history, None
        return history, Verdict(
            ExitReason.OVERFITTING,
            {
                "pattern": "validation loss stays above training loss",
                "gap": gap if math.isfinite(gap) else None,
                "tau_gap": p.tau_gap,
                "consecutive": count,
                "patience": p.patience_overfitting,
                **self._window_evidence(history),
            },
        )

    def _guard_passed(self, history: History) -> bool:
        """Whether a pattern detected now ends the job. Here always; GuardedAlto overrides it (as it does
        `decide_ranks`), and a verdict withheld now may come at a later evaluation."""
        return True

    def decide_ranks(
        self, standings: Iterable[Standing], base: RowScores | None = None, base_texts: RowScores | None = None
    ) -> dict[int, Verdict | None]:
        """Lines 15-21, decided as early as possible: the jobs past warmup whose rank no later arrival can change.

        None is a job that continues. A job that is absent from the answer must wait for others. `standings` are all jobs that
        reached the end of warmup, decided ones included, and those that still may.

        With `ahead` jobs ahead of it and `in_warmup` jobs still in warmup, a job's final rank, counted from 0, lies between
        ahead and ahead + in_warmup. `keep` shrinks by at most one for each job that ends in warmup. So a job is certainly
        out when ahead >= keep now, and certainly in when ahead + in_warmup < keep now. By a text metric none of this holds, and
        nothing is decided before all warmups have ended.
        """
        contenders = list(standings)
        keep = self._p.kept_of(len(contenders))
        measure, ranked = self._ranking(contenders, by_losses)
        in_warmup = len(contenders) - len(ranked)
        decided: dict[int, Verdict | None] = {}
        for ahead, one in enumerate(ranked):
            if ahead + in_warmup < keep:
                decided[one.job] = None
            elif ahead >= keep:
                decided[one.job] = self._underperforming(measure, ranked, ahead, keep, len(contenders))
        return decided

    def _ranking(self, contenders: Sequence[Standing], by_validation: Order) -> tuple[Measure, list[Place]]:
        """The jobs past their warmup, the best first; none while a rank by a text metric is open."""
        if self._metric is not None and not all(one.losses for one in contenders):
            return Measure(self._metric), []
        return ranking(self._metric, contenders, by_validation)

    def _underperforming(self, measure: Measure, ranked: Sequence[Place], ahead: int, keep: int, contenders: int) -> Verdict:
        """The verdict on the job behind so many others, of which the first `keep` go on."""
        return Verdict(
            ExitReason.UNDERPERFORMING,
            {
                "pattern": "ranks below the cut at the warmup boundary",
                **measure.evidence(ranked[ahead]),
                **measure.told(ranked[keep - 1].value, "last_kept_"),
                "rank": ahead + 1,
                "kept": keep,
                "finished": len(ranked),
                "alive": contenders,
                "keep_fraction": self._p.keep_fraction,
            },
        )
