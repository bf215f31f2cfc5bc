"""ALTO with the guard of its text, and a cut after warmup that compares jobs row by row.

Pure: losses, row scores and counts in, verdicts with their evidence out. Knows no tensors, no steps and no trainer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.row_scores import MeanEstimate, RowScores
from contract.states import ExitReason
from worker.policy.early_exit.alto_rules import Alto
from worker.policy.early_exit.policy_interface import Evidence, History, Standing, Verdict


@dataclass(frozen=True)
class _Ranked:
    """A job past its warmup, by its mean score, ties by its index."""

    mean: float
    job: int
    standing: Standing


class GuardedAlto(Alto):
    """As `Alto`, but a pattern ends a job only after `guard_patience` evaluations without a new lowest validation loss: "the
    validation loss turns upward" (5.1), which Algorithm 1 leaves out, and which noise on few held-out rows can feign.

    The cut keeps every job that is not surely worse than the best by a paired test over the validation rows, and no fewer and
    no more than `survivors` of the policy's parameters says. The bounds are half and one and a half times ALTO's quarter, so
    that a cut keeps a quarter on average. Without the floor an early test would decide a late outcome; without the ceiling a
    test of too few rows would keep everybody.
    """

    def _guard_passed(self, history: History) -> bool:
        return history.stale >= self._p.guard_patience

    def decide_ranks(self, standings: Iterable[Standing], base: RowScores | None = None) -> dict[int, Verdict | None]:
        """As early as possible, and independent of the order in which jobs arrive. A job is out once `most` jobs rank ahead of
        it, and in once no later arrival can push it out of the first `fewest`. The others wait for all warmups to end, and are
        compared with the best.

        Where all warmups have ended and every job is surely worse than the base, the search ends: training has only done
        harm, whatever the configuration. The adapter of the best is kept.
        """
        contenders = list(standings)
        ranked = _rank(contenders)
        if not ranked:
            return {}
        fewest, most = self._p.survivors(len(contenders))
        in_warmup = len(contenders) - len(ranked)
        if not in_warmup and base is not None and all(_surely_worse(one.standing.scores, base) for one in ranked):
            return {one.job: _nothing_learned(one, base, place == 0) for place, one in enumerate(ranked)}
        decided: dict[int, Verdict | None] = {}
        for ahead, one in enumerate(ranked):
            if ahead >= most:
                decided[one.job] = self._underperforming(
                    one.mean, ranked[most - 1].mean, ahead, most, len(ranked), len(contenders)
                )
            elif ahead + in_warmup < fewest:
                search_may_end = base is not None and in_warmup > 0 and _surely_worse(one.standing.scores, base)
                if not search_may_end:
                    decided[one.job] = None
            elif not in_warmup:
                decided[one.job] = self._compared(one, ranked, ahead)
        return decided

    def _compared(self, one: _Ranked, ranked: Sequence[_Ranked], ahead: int) -> Verdict | None:
        """The verdict on a job between the floor and the ceiling. Without the scores of both it is ALTO's, by rank."""
        difference = _paired(one.standing.scores, ranked[0].standing.scores)
        if difference is None:
            keep = math.ceil(self._p.keep_fraction * len(ranked))
            if ahead < keep:
                return None
            return self._underperforming(one.mean, ranked[keep - 1].mean, ahead, keep, len(ranked), len(ranked))
        low, high = difference.interval
        if low <= 0:
            return None
        evidence: Evidence = {
            "pattern": "worse than the best at the warmup boundary, by a paired test over the validation rows at 95 %",
            "val_loss": one.mean,
            "best_val_loss": ranked[0].mean,
            "difference": difference.mean,
            "difference_low": low,
            "difference_high": high,
            "rows": difference.rows,
            "rank": ahead + 1,
            "alive": len(ranked),
        }
        return Verdict(ExitReason.UNDERPERFORMING, evidence)


def _rank(contenders: Sequence[Standing]) -> list[_Ranked]:
    """The jobs past their warmup, the best first. A job without scores counts by its loss; among scores of another metric it
    is the last."""
    by_error = any(one.scores is not None and one.scores.metric != "loss" for one in contenders)
    found = []
    for one in contenders:
        if one.losses:
            lacking = math.inf if by_error else one.losses[0]
            found.append(_Ranked(one.scores.mean if one.scores is not None else lacking, one.job, one))
    return sorted(found, key=lambda ranked: (ranked.mean, ranked.job))


def _paired(own: RowScores | None, other: RowScores | None) -> MeanEstimate | None:
    """The difference own - other, where both are known and of the same rows."""
    if own is None or other is None or not own.comparable(other):
        return None
    return own.minus(other)


def _surely_worse(own: RowScores | None, other: RowScores) -> bool:
    difference = _paired(own, other)
    return difference is not None and difference.interval[0] > 0


def _nothing_learned(one: _Ranked, base: RowScores, best: bool) -> Verdict:
    """The verdict on every job of a search that ends at its cut."""
    evidence: Evidence = {
        "pattern": "no job beats the base at the warmup boundary",
        "val_loss": one.mean,
        "base_val_loss": base.mean,
        "rows": len(base.totals),
    }
    return Verdict(ExitReason.UNDERPERFORMING, evidence, keeps_adapter_though_ranked_out=best)
