"""Asynchronous successive halving (Li et al. 2020), in the form that stops jobs rather than promotes them: no job waits for
others.

Pure: knows no tensors and no steps. The spec's schedule spaces the rungs; here a rung is an index in a list.
"""

from collections.abc import Iterable

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from contract.states import ExitReason
from worker.policy.early_exit.policy_interface import History, Standing, Verdict, non_finite_verdict


class Asha:
    """At a rung a job stops unless it is among the best 1 / eta that have reached the rung up to then."""

    def __init__(self, parameters: EarlyExitPolicy) -> None:
        self._eta = parameters.reduction_factor

    def on_evaluation(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        return history, non_finite_verdict("train_loss", train_loss) or non_finite_verdict("val_loss", val_loss)

    def decide_ranks(self, standings: Iterable[Standing], base: RowScores | None = None) -> dict[int, Verdict | None]:
        """Decides on every job at the last rung it reached. At least one job continues from a rung; ties go to the
        lower job index."""
        present = list(standings)
        decided: dict[int, Verdict | None] = {}
        for rung in range(max((len(s.losses) for s in present), default=0)):
            ranked = sorted((s.losses[rung], s.job) for s in present if len(s.losses) > rung)
            keep = max(1, len(ranked) // self._eta)
            last = {s.job for s in present if len(s.losses) == rung + 1}
            for ahead, (loss, job) in enumerate(ranked):
                if job in last:
                    decided[job] = (
                        None if ahead < keep else self._behind(rung, loss, ranked[keep - 1][0], ahead, keep, len(ranked))
                    )
        return decided

    def _behind(self, rung: int, loss: float, last_kept: float, ahead: int, keep: int, reached: int) -> Verdict:
        return Verdict(
            ExitReason.UNDERPERFORMING,
            {
                "pattern": "not among the best that reached the rung so far",
                "rung": rung,
                "val_loss": loss,
                "last_kept_val_loss": last_kept,
                "rank": ahead + 1,
                "kept": keep,
                "reached": reached,
                "reduction_factor": self._eta,
            },
        )
