"""How long a packed step takes, learned from measured ones: seconds = a passes + b tokens + c adapter rows + d jobs.

Pure: measurements in, predictions out. One estimate is of one base in one precision on one type of device. Least squares over
relative errors with coefficients that are not negative (Lawson & Hanson 1974, by enumeration: there are four), where older
steps count less. What measurements cannot tell apart is shared evenly between the terms.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_TERMS = 4
_FORGET = 0.99  # weight of a step after the next one
_LEAST = 8  # steps before the first prediction
_RIDGE = 1e-3  # of the evidence; against terms that measurements cannot tell apart
# times what a step should take, since predictions err: what takes longer stalls. A kernel compiles, a graph is captured, memory
# grows: that says nothing of how fast such steps are.
STALL = 2.0


@dataclass(frozen=True)
class StepLoad:
    """What a step did: passes of the base, tokens in them, adapter rows (ranks) and jobs that were updated."""

    passes: float
    tokens: float
    adapter_rows: float
    jobs: float

    @property
    def terms(self) -> NDArray[np.float64]:
        return np.array([self.passes, self.tokens, self.adapter_rows, self.jobs], np.float64)


@dataclass(frozen=True)
class StepTimes:
    """Sums over the `count` steps seen. gram: of x x', moment: of x, each x a step's terms over its seconds."""

    gram: NDArray[np.float64]
    moment: NDArray[np.float64]
    count: int = 0

    @classmethod
    def empty(cls) -> "StepTimes":
        return cls(np.zeros((_TERMS, _TERMS)), np.zeros(_TERMS))

    def learned(self, load: StepLoad, seconds: float) -> "StepTimes":
        """The sums with one more step. Raises ValueError where it took no time."""
        if not seconds > 0:
            raise ValueError(f"a step took {seconds} seconds")
        x = load.terms / seconds
        return replace(
            self,
            gram=_FORGET * self.gram + np.outer(x, x),
            moment=_FORGET * self.moment + x,
            count=self.count + 1,
        )

    def aged(self, kept: float) -> "StepTimes":
        """The sums, `kept` times as heavy."""
        return replace(self, gram=kept * self.gram, moment=kept * self.moment)

    def beside(self, other: "StepTimes", weight: float) -> "StepTimes":
        """These sums with the other ones, whose steps count `weight` times as much."""
        gram, moment = self.gram + weight * other.gram, self.moment + weight * other.moment
        return StepTimes(gram, moment, max(self.count, other.count))

    def model(self) -> "StepModel | None":
        """The fitted model; None before it has seen enough."""
        if self.count < _LEAST:
            return None
        scale = np.sqrt(np.diag(self.gram))
        scale[scale == 0] = 1.0
        gram = self.gram / np.outer(scale, scale) + _RIDGE * np.eye(_TERMS)
        solution = _not_negative(gram, self.moment / scale)
        return StepModel(*(float(number) for number in solution / scale))


@dataclass(frozen=True)
class StepModel:
    """Seconds of a pass, and for each token, adapter row and job."""

    per_pass: float
    per_token: float
    per_row: float
    per_job: float

    def seconds(self, load: StepLoad) -> float:
        adapters = self.per_row * load.adapter_rows + self.per_job * load.jobs
        return self.per_pass * load.passes + self.per_token * load.tokens + adapters

    def tokens_for_throughput_share(self, share: float, most: int) -> int:
        """Tokens of the smallest pass that reaches `share` of the throughput of an endless one, up to `most`."""
        if self.per_token * most * (1 - share) <= share * self.per_pass:
            return most
        return round(share / (1 - share) * self.per_pass / self.per_token)


PRIOR = StepModel(4e-3, 4e-6, 0.0, 0.0)  # an H200 with a base of 1B: until steps are measured


def _not_negative(gram: NDArray[np.float64], moment: NDArray[np.float64]) -> NDArray[np.float64]:
    """argmin of x' gram x / 2 - moment' x over x >= 0: the best of all subsets of terms whose solution is not negative."""
    best, least = np.zeros(_TERMS), 0.0
    for size in range(1, _TERMS + 1):
        for some in combinations(range(_TERMS), size):
            at = list(some)
            x = np.linalg.solve(gram[np.ix_(at, at)], moment[at])
            value = -0.5 * float(moment[at] @ x)
            if (x >= 0).all() and value < least:
                best, least = np.zeros(_TERMS), value
                best[at] = x
    return best
