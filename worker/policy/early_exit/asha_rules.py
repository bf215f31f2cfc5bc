"""Asynchronous successive halving (Li et al. 2020), in the form that stops jobs rather than promotes them: no job waits for
others.

Pure: knows no tensors and no steps. The spec's schedule spaces the rungs; here a rung is an index in a list.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from contract.states import ExitReason
from worker.policy.early_exit.policy_interface import History, Standing, Verdict, non_finite_verdict
from worker.policy.early_exit.ranking import Measure, Place, by_losses, ranking


class Asha:
    """At a rung a job stops unless it is among the best 1 / eta that have reached the rung up to then. metric: the text metric
    that ranks jobs at the first rung; at the others, and where it is None, validation losses do."""

    def __init__(self, parameters: EarlyExitPolicy, metric: str | None = None) -> None:
        self._eta, self._metric = parameters.reduction_factor, metric

    def on_evaluation(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        return history, non_finite_verdict("train_loss", train_loss) or non_finite_verdict("val_loss", val_loss)

    def decide_ranks(
        self, standings: Iterable[Standing], base: RowScores | None = None, base_texts: RowScores | None = None
    ) -> dict[int, Verdict | None]:
        """Decides on every job at the last rung it reached. At least one job continues from a rung; ties go to the
        lower job index."""
        present = list(standings)
        decided: dict[int, Verdict | None] = {}
        for rung in range(max((len(s.losses) for s in present), default=0)):
            measure, ranked = ranking(None if rung else self._metric, present, partial(by_losses, rung=rung))
            keep = max(1, len(ranked) // self._eta)
            last = {s.job for s in present if len(s.losses) == rung + 1}
            for ahead, one in enumerate(ranked):
                if one.job in last:
                    decided[one.job] = None if ahead < keep else self._behind(rung, measure, ranked, ahead, keep)
        return decided

    def _behind(self, rung: int, measure: Measure, ranked: Sequence[Place], ahead: int, keep: int) -> Verdict:
        return Verdict(
            ExitReason.UNDERPERFORMING,
            {
                "pattern": "not among the best that reached the rung so far",
                "rung": rung,
                **measure.evidence(ranked[ahead]),
                **measure.told(ranked[keep - 1].value, "last_kept_"),
                "rank": ahead + 1,
                "kept": keep,
                "reached": len(ranked),
                "reduction_factor": self._eta,
            },
        )
