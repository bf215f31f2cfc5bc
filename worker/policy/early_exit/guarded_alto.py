"""ALTO with the guard of its text, and a cut after warmup that compares jobs row by row.

Pure: losses, row scores and counts in, verdicts with their evidence out. Knows no tensors, no steps and no trainer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from contract.row_scores import MeanEstimate, RowScores
from contract.states import ExitReason
from worker.policy.early_exit.alto_rules import Alto
from worker.policy.early_exit.policy_interface import Evidence, History, Standing, Verdict
from worker.policy.early_exit.ranking import Measure, Place, by_scores, is_error


class GuardedAlto(Alto):
    """As `Alto`, but a pattern ends a job only after `guard_patience` evaluations without a new lowest validation loss: "the
    validation loss turns upward" (5.1), which Algorithm 1 leaves out, and which noise on few held-out rows can feign.

    The cut keeps every job that is not surely worse than the best by a paired test over the validation rows, and no fewer and
    no more than `survivors` of the policy's parameters says. The bounds are half and one and a half times ALTO's quarter, so
    that a cut keeps a quarter on average. Without the floor an early test would decide a late outcome; without the ceiling a
    test of too few rows would keep everybody. Where no job is surely better than the base by the validation rows, the ceiling
    alone cuts: the best has hardly learned then, and a job may be worse than it for having learned more. By a text metric the
    test is over the prompts, and jobs that it cannot tell from the best are compared over the validation rows with the first of
    them: prompts are few, and leave most jobs equal.
    """

    def _guard_passed(self, history: History) -> bool:
        return history.stale >= self._p.guard_patience

    def decide_ranks(
        self, standings: Iterable[Standing], base: RowScores | None = None, base_texts: RowScores | None = None
    ) -> dict[int, Verdict | None]:
        """As early as possible, and independent of the order in which jobs arrive. A job is out once `most` jobs rank ahead of
        it, and in once no later arrival can push it out of the first `fewest`. The others wait for all warmups to end, and are
        compared with the best. By a text metric all wait, and are compared over the prompts.

        Where all warmups have ended and every job is surely worse than the base, the search ends: training has only done
        harm, whatever the configuration. The adapter of the best is kept.
        """
        contenders = list(standings)
        measure, ranked = self._ranking(contenders, by_scores)
        if not ranked:
            return {}
        base = base if measure.metric is None else base_texts
        fewest, most = self._p.survivors(len(contenders))
        in_warmup = len(contenders) - len(ranked)
        if not in_warmup and base is not None and all(_surely_worse(one, base) for one in ranked):
            return {one.job: _nothing_learned(measure, one, base, place == 0) for place, one in enumerate(ranked)}
        unbeaten = (
            not in_warmup
            and base is not None
            and measure.metric is None
            and not any(_surely_better(one, base) for one in ranked)
        )
        decided: dict[int, Verdict | None] = {}
        for ahead, one in enumerate(ranked):
            if ahead >= most:
                decided[one.job] = self._underperforming(measure, ranked, ahead, most, len(contenders))
            elif ahead + in_warmup < fewest:
                search_may_end = base is not None and in_warmup > 0 and _surely_worse(one, base)
                if not search_may_end:
                    decided[one.job] = None
            elif not in_warmup:
                decided[one.job] = self._compared(measure, ranked, ahead, unbeaten)
        return decided

    def _compared(self, measure: Measure, ranked: Sequence[Place], ahead: int, unbeaten: bool) -> Verdict | None:
        """The verdict on a job between the floor and the ceiling. Without the scores of both it is ALTO's, by rank. unbeaten:
        no job is surely better than the base."""
        one, best = ranked[ahead], min(ranked, key=lambda place: place.value)
        difference = _paired(one.scores, best.scores)
        if difference is None:
            keep = self._p.kept_of(len(ranked))
            return None if ahead < keep else self._underperforming(measure, ranked, ahead, keep, len(ranked))
        if unbeaten:
            return None
        if difference.interval[0] > 0:
            return _worse(measure, one, best, difference, ahead, len(ranked))
        if measure.metric is not None:
            own, first = (replace(place, value=place.val_loss, scores=place.validation) for place in (one, ranked[0]))
            difference = _paired(own.scores, first.scores)
            if difference is not None and difference.interval[0] > 0:
                return _worse(
                    Measure(tied=measure.metric, by_error=is_error(own.scores)),
                    own,
                    first,
                    difference,
                    ahead,
                    len(ranked),
                )
        return None


def _paired(own: RowScores | None, other: RowScores | None) -> MeanEstimate | None:
    """The difference own - other, where both are known and of the same rows."""
    if own is None or other is None or not own.comparable(other):
        return None
    return own.minus(other)


def _surely_worse(one: Place, base: RowScores) -> bool:
    difference = _paired(one.scores, base)
    return difference is not None and difference.interval[0] > 0


def _surely_better(one: Place, base: RowScores) -> bool:
    difference = _paired(one.scores, base)
    return difference is not None and difference.interval[1] < 0


def _worse(measure: Measure, one: Place, best: Place, difference: MeanEstimate, ahead: int, alive: int) -> Verdict:
    """The verdict on a job that the paired test parts from the best."""
    over = "validation rows" if measure.metric is None else "prompts"
    low, high = difference.interval
    evidence: Evidence = {
        "pattern": f"worse than the best at the warmup boundary, by a paired test over the {over} at 95 %",
        **measure.evidence(one),
        **measure.told(best.value, "best_"),
        "difference": difference.mean,
        "difference_low": low,
        "difference_high": high,
        measure.rows: difference.rows,
        "rank": ahead + 1,
        "alive": alive,
    }
    return Verdict(ExitReason.UNDERPERFORMING, evidence)


def _nothing_learned(measure: Measure, one: Place, base: RowScores, best: bool) -> Verdict:
    """The verdict on every job of a search that ends at its cut."""
    evidence: Evidence = {
        "pattern": "no job beats the base at the warmup boundary",
        **measure.evidence(one),
        **measure.told(base.mean, "base_"),
        measure.rows: len(base.totals),
    }
    return Verdict(ExitReason.UNDERPERFORMING, evidence, keeps_adapter_though_ranked_out=best)
