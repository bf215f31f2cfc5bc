"""On how many prompts an adapter's text scored higher than the base's: wins, ties and losses by each text metric. Pure.

Who wins a prompt is decided by the metric's own score; nobody else judges. Texts of equal score are a tie.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from pydantic import BaseModel, Field


class WinShare(BaseModel):
    """The part of the wins among the prompts that are no ties, with its 95 % confidence interval (Wilson 1927)."""

    share: float
    low: float
    high: float


class PairwiseWins(BaseModel):
    """The winner's texts against the base's, prompt by prompt, by one metric's scores."""

    metric: str
    wins: int = Field(description="Prompts on which the adapter's text scored higher than the base's")
    ties: int
    losses: int
    win_share: WinShare | None = Field(
        description="Of wins and losses; null where all are ties. The interval holds for all jobs that were compared at "
        "once, since the winner is the best of them"
    )
    sentence: str = Field(description="The same in words")


def wins_over(base: Mapping[str, Sequence[float]], own: Mapping[str, Sequence[float]], compared: int) -> list[PairwiseWins]:
    """By each metric that both have scores by, of the same number of prompts, in order of the names. compared: among how many
    jobs the adapter is the best."""
    names = sorted(name for name in own if own[name] and len(own[name]) == len(base.get(name, ())))
    return [_counted(name, base[name], own[name], compared) for name in names]


def _counted(metric: str, base: Sequence[float], own: Sequence[float], compared: int) -> PairwiseWins:
    wins = sum(ours > theirs for ours, theirs in zip(own, base, strict=True))
    losses = sum(ours < theirs for ours, theirs in zip(own, base, strict=True))
    ties, decided = len(own) - wins - losses, wins + losses
    said = f"by {metric} the adapter's text is better than the base's on {wins} prompts, worse on {losses}, as good on {ties}"
    share = None
    if decided:
        low, high = wilson(wins, decided, compared)
        share = WinShare(share=wins / decided, low=low, high=high)
        said += f": it wins {share.share:.0%} ({low:.0%} to {high:.0%}) of those that differ"
    return PairwiseWins(metric=metric, wins=wins, ties=ties, losses=losses, win_share=share, sentence=said)


def wilson(successes: int, trials: int, comparisons: int = 1) -> tuple[float, float]:
    """Wilson's score interval of a proportion, of 95 % for so many proportions at once (Bonferroni). Of at least one trial."""
    z = NormalDist().inv_cdf(1 - 0.025 / comparisons)
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    reach = z / (1 + spread) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, middle - reach), min(1.0, middle + reach)
