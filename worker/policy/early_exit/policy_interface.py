"""The interface of early-exit (early-stopping) policies, their inputs and answers, and the arithmetic they share. Holds no
policy.

Pure: losses and counts in, verdicts with their evidence out. Knows no tensors, no steps and no trainer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from contract.row_scores import RowScores
from contract.states import ExitReason

Evidence = dict[str, float | int | str | list[float | None] | None]


@dataclass(frozen=True)
class Verdict:
    """The decision to end a job: its reason, and the numbers behind it. keeps_adapter_though_ranked_out: of a job that
    underperforms, whose adapter is dropped otherwise (executor/placement/placement_run.py)."""

    reason: ExitReason
    evidence: Evidence
    keeps_adapter_though_ranked_out: bool = False


@dataclass(frozen=True)
class History:
    """A policy's state for one job between evaluations: the windows, the patience counters, the lowest loss."""

    train: tuple[float, ...] = ()  # smoothed training losses sampled at evaluations, the last `window`
    val: tuple[float, ...] = ()  # validation losses, the last `window`
    diverging: int = 0
    overfitting: int = 0
    best: float | None = None  # the lowest validation loss so far
    stale: int = 0  # evaluations since then


@dataclass(frozen=True)
class Standing:
    """One job's validation losses at the rungs it has reached; empty while its warmup runs. scores: of each validation row at
    the first rung, where they are known: an older executor did not report them. texts: of each prompt there, where a text
    metric ranks jobs; None: they could not be scored."""

    job: int
    losses: tuple[float, ...]
    scores: RowScores | None = None
    texts: RowScores | None = None


class Policy(Protocol):
    """An early-exit policy. The executor calls `on_evaluation` after each evaluation of a job, and `decide_ranks` whenever
    standings change.

    `decide_ranks` answers for jobs whose rank at their last rung is certain: None continues, a verdict ends the job, and a job
    that is absent from the answer must wait for others. base, base_texts: what the base alone scores on the validation rows,
    and on the prompts by the text metric that ranks jobs, if known.
    """

    def on_evaluation(self, history: History, train_loss: float, val_loss: float) -> tuple[History, Verdict | None]: ...

    def decide_ranks(
        self, standings: Iterable[Standing], base: RowScores | None = None, base_texts: RowScores | None = None
    ) -> dict[int, Verdict | None]: ...


def smooth(before: float | None, loss: float, alpha: float) -> float:
    """One step of the exponential moving average (ALTO 5.1); the first loss starts it."""
    return loss if before is None else alpha * loss + (1 - alpha) * before


def slope(values: Sequence[float]) -> float:
    """Least-squares slope of `values` over their indexes 0, 1, …; at least two values."""
    middle = (len(values) - 1) / 2
    rise = sum((place - middle) * value for place, value in enumerate(values))
    return rise / sum((place - middle) ** 2 for place in range(len(values)))


def non_finite_verdict(series: str, loss: float) -> Verdict | None:
    """A loss that is not a finite number is a divergence at once, under every policy: only such losses follow it."""
    if math.isfinite(loss):
        return None
    return Verdict(ExitReason.DIVERGING, {"pattern": "loss is not finite", "series": series, "value": str(loss)})
