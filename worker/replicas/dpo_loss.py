"""Direct preference optimisation (Rafailov et al. 2023, equation 7): losses, rewards, and the loss weight of each answer:
the derivative of the loss by its -log p. Knows no tensors and no model: log-probabilities in, numbers out.

Sequences come in pairs, the chosen answer before the rejected one; a log-probability is a sequence's sum over its labels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class PreferenceResult:
    """Results for some pairs. loss: mean of -log sigmoid(margin). accuracy: share of pairs whose chosen answer has the higher
    reward.

    margin: mean difference of the rewards, beta (log p - log p of the reference). loss_weights: per sequence, the derivative of
    the loss by its -log p. margins: of each pair.
    """

    loss: float
    accuracy: float
    margin: float
    loss_weights: list[float]
    margins: list[float]


def pair_loss(margin: float) -> float:
    """-log sigmoid(margin)."""
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


def pair_error(margin: float) -> float:
    """Whether the pair is ordered wrongly: 0 or 1, and 1/2 where both answers have the same reward, as before any step."""
    return 0.5 if margin == 0 else float(margin < 0)


def preference_loss(beta: float, log_p: Sequence[float], reference: Sequence[float]) -> PreferenceResult:
    """Loss, accuracy, margin and loss weights of the pairs; all NaN where a log-probability is not finite."""
    rewards = [beta * (own - base) for own, base in zip(log_p, reference, strict=True)]
    margins = [chosen - rejected for chosen, rejected in zip(rewards[::2], rewards[1::2], strict=True)]
    if not all(math.isfinite(margin) for margin in margins):
        return PreferenceResult(math.nan, math.nan, math.nan, [math.nan] * len(rewards), margins)
    slopes = [beta * _sigmoid(-margin) / len(margins) for margin in margins]
    return PreferenceResult(
        loss=fmean(map(pair_loss, margins)),
        accuracy=fmean(margin > 0 for margin in margins),
        margin=fmean(margins),
        loss_weights=[weight for slope in slopes for weight in (slope, -slope)],
        margins=margins,
    )


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
