"""Selects the early-exit (early-stopping) policy that a task asked for, and holds the simplest one: no early exit."""

from collections.abc import Iterable

from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from worker.policy.early_exit.alto_rules import Alto
from worker.policy.early_exit.asha_rules import Asha
from worker.policy.early_exit.guarded_alto import GuardedAlto
from worker.policy.early_exit.policy_interface import History, Policy, Standing, Verdict, non_finite_verdict


def policy_of(parameters: EarlyExitPolicy, metric: str | None = None) -> Policy:
    """The policy that a task asked for. metric: the text metric that ranks jobs at the first rung (TaskSpec.cut_metric)."""
    match parameters.policy:
        case "alto":
            return Alto(parameters, metric)
        case "alto_guarded":
            return GuardedAlto(parameters, metric)
        case "asha":
            return Asha(parameters, metric)
        case "none":
            return TrainToEnd()


class TrainToEnd:
    """No early exit: every job runs to its end, and no boundary ranks it."""

    def on_evaluation(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]:
        return history, non_finite_verdict("val_loss", val_loss)

    def decide_ranks(
        self, standings: Iterable[Standing], base: RowScores | None = None, base_texts: RowScores | None = None
    ) -> dict[int, Verdict | None]:
        return {standing.job: None for standing in standings if standing.losses}
