"""RowScores: what an adapter scored on each validation row, and the paired statistics by which two adapters are compared.

Pure arithmetic, shared by the worker (the cut after warmup) and the service (the winner). Knows no jobs and no policy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from contract.strict import Message

MAX_SCORED_ROWS = 4096  # of a task: bounds a report, a checkpoint and a stored adapter
Metric = Literal["loss", "error"]
_FEW = 7  # degrees of freedom of which the expansion of Student's t is no good where many jobs are compared
_HALVINGS = 52  # of the range of an angle: as many as its bits
_ROUNDING = 1 + 1e-9  # one more right answer is just one standard error, whatever their number


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over rows with its standard error. rows: how many it is of; of rows that are equal, one."""

    mean: float
    standard_error: float
    rows: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval."""
        return self.interval_for(1)

    def interval_for(self, comparisons: int) -> tuple[float, float]:
        """The interval, by Student's t, that holds at 95 % for so many estimates at once (Bonferroni): the best of many is the
        best by luck, too."""
        reach = t_quantile(self.rows - 1, 1 - 0.05 / comparisons) * self.standard_error
        return self.mean - reach, self.mean + reach


class RowScores(Message):
    """Per validation row, in the order of the rows, which is the same for all jobs of a task; lower is better.

    `loss`: the sum of -log p over a row's completion tokens, weighted by their number; under dpo a pair's loss. `error`, of dpo
    searches over beta, whose losses are not comparable: 0 for a pair whose chosen answer has the higher implicit reward, 1 for
    one whose rejected answer has it, 1/2 for equal ones; and of generated texts: 1 minus a text metric's result.
    """

    metric: Metric = "loss"
    totals: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=MAX_SCORED_ROWS)]
    weights: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=MAX_SCORED_ROWS)] = Field(
        default=[], description="Of each row: its completion tokens; empty: 1 each, as of pairs."
    )
    clusters: Annotated[list[int], Field(max_length=MAX_SCORED_ROWS)] = Field(
        default=[], description="Of each row: a number that rows of the same tokens and labels share; empty: no two are equal."
    )

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        for name, given in (("weights", self.weights), ("clusters", self.clusters)):
            if given and len(given) != len(self.totals):
                raise ValueError(f"holds {len(self.totals)} totals, but {len(given)} {name}")
        return self

    @classmethod
    def of_results(cls, results: Sequence[float]) -> Self:
        """Of a text metric's results on each prompt, from 0 to 1."""
        return cls(metric="error", totals=[1 - result for result in results])

    @property
    def mean(self) -> float:
        return self.estimate().mean

    def estimate(self) -> MeanEstimate:
        """The mean per unit of weight."""
        return ratio_estimate(self.totals, self.weights, self.clusters)

    def comparable(self, other: "RowScores") -> bool:
        """Whether both are of the same rows by the same metric."""
        own, theirs = ((one.metric, one.weights, one.clusters, len(one.totals)) for one in (self, other))
        return own == theirs

    def minus(self, other: "RowScores") -> MeanEstimate:
        """The paired difference of the means, own - other: negative where this one is better. Raises ValueError for scores that
        are not comparable."""
        if not self.comparable(other):
            raise ValueError("scores of other rows, or by another metric, cannot be paired")
        differences = [own - their for own, their in zip(self.totals, other.totals, strict=True)]
        return ratio_estimate(differences, self.weights, self.clusters)

    def as_good_as(self, best: "RowScores") -> bool:
        """The one-standard-error rule (Breiman et al. 1984, 3.4.3): whether these count as equal to the best ones. Raises
        ValueError as `minus`."""
        difference = self.minus(best)
        return difference.mean <= difference.standard_error * _ROUNDING

    def surely_worse_than(self, other: "RowScores") -> bool:
        """Whether the whole 95 % interval of the paired difference is above 0. Raises ValueError as `minus`."""
        return self.minus(other).interval[0] > 0


def ratio_estimate(totals: Sequence[float], weights: Sequence[int], clusters: Sequence[int] = ()) -> MeanEstimate:
    """sum(totals) / sum(weights) with its standard error over rows, by linearisation (Cochran 1977, Sampling Techniques, 6.3);
    without weights the mean and the usual standard error. Rows of one of the clusters count as one drawn row, whose total and
    weight are their sums (9A): a copy tells nothing new. One row says nothing of the spread: the error is infinite."""
    rows, whole = len(totals), float(sum(weights)) if weights else float(len(totals))
    mean = math.fsum(totals) / whole
    rests = [total - mean * weight for total, weight in zip(totals, weights or [1] * rows, strict=True)]
    if clusters:
        drawn = dict.fromkeys(clusters, 0.0)
        for cluster, rest in zip(clusters, rests, strict=True):
            drawn[cluster] += rest
        rows, rests = len(drawn), list(drawn.values())
    if rows < 2:
        return MeanEstimate(mean, math.inf, rows)
    return MeanEstimate(mean, math.sqrt(rows / (rows - 1) * math.fsum(rest * rest for rest in rests)) / whole, rows)


def unseen_share(rows: int, comparisons: int = 1) -> float:
    """The largest share that another outcome may have where all of so many rows have the same one: 1 minus the lower end of the
    95 % interval of n of n (Clopper and Pearson 1934), for so many estimates at once (Bonferroni)."""
    return float(1 - (0.025 / comparisons) ** (1 / rows))


@lru_cache
def t_quantile(freedom: int, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t: of few degrees of freedom exactly, else by the expansion in 1 / freedom, within
    1 % also at the level of 1,024 comparisons (Abramowitz and Stegun 26.7.5)."""
    if freedom < 1:
        return math.inf
    if freedom <= _FEW:
        low, high = 0.0, math.pi / 2
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if _t_within(middle, freedom) < level else (low, middle)
        return math.sqrt(freedom) * math.tan(low)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / freedom**power for power, term in enumerate(terms))


def _t_within(angle: float, freedom: int) -> float:
    """The probability that Student's t lies within sqrt(freedom) tan(angle) of 0 (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    odd, squared = freedom % 2, math.cos(angle) ** 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for place in range(3 if odd else 2, freedom + 1, 2):
        total += term
        term *= (place - 1) / place * squared
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
