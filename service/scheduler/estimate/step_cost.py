"""What a step costs: seconds of a pass of the base, and of each token. The part of a pass is what tasks save that share it.

Values only. Fitted to the measured profiles of a base in a precision on a GPU type, shared steps among them. Without any, a
prior: half the least time of a step plus reading the weights twice, and the FLOPs of a token; on an H200 with Llama-3.2-1B's
shape that is 8.7 ms and 11 us, measured were 7.3 ms and 10.8 us (docs/SCHEDULING.md).
"""

from dataclasses import dataclass

import numpy as np

from service.scheduler.estimate.throughput import FLOPS_PER_WEIGHT, READS_PER_STEP, ThroughputModel

_MOST = 8  # measurements of a profile that count
_PRIOR_TOKENS, _PRIOR_COUNT = (128.0, 8192.0), 0.05  # where the prior counts, as how many measurements each
_LEAST = 0.02  # least part of a pass in the prior's, so that no fit says that sharing saves nothing, or all


@dataclass(frozen=True)
class StepCost:
    """Seconds of each pass of the base, and of each token in it."""

    per_pass: float
    per_token: float

    def seconds(self, tokens: float, passes: int = 1) -> float:
        return passes * self.per_pass + self.per_token * tokens

    def overhead(self, tokens: float, passes: int = 1) -> float:
        """The part of the step that its passes take whatever is in them, in (0, 1)."""
        return passes * self.per_pass / self.seconds(tokens, passes)


def prior_step_cost(model: ThroughputModel) -> StepCost:
    hardware = model.hardware
    reads = READS_PER_STEP * model.weight_bytes / hardware.bytes_per_second
    return StepCost(hardware.step_seconds / 2 + reads, FLOPS_PER_WEIGHT * model.parameters / hardware.flops)


def step_cost(model: ThroughputModel) -> StepCost:
    """The costs that fit the profiles and the prior best, by least squares over relative errors, neither below the `_LEAST`
    part of the prior's. The prior is scaled to the level of the measurements, so that it only says the shape."""
    guess = prior_step_cost(model)
    seen = [(profile.tokens, float(np.exp(profile.log_seconds)), min(profile.measured, _MOST)) for _, profile in model.profiles]
    if not seen:
        return guess
    logs = [np.log(seconds / guess.seconds(tokens)) for tokens, seconds, _ in seen]
    level = float(np.exp(np.average(logs, weights=[count for *_, count in seen])))
    guess = StepCost(guess.per_pass * level, guess.per_token * level)
    points = [*seen, *((tokens, guess.seconds(tokens), _PRIOR_COUNT) for tokens in _PRIOR_TOKENS)]
    terms = np.array([[1.0 / seconds, tokens / seconds] for tokens, seconds, _ in points])
    counts = np.sqrt([count for *_, count in points])
    (per_pass, per_token), *_ = np.linalg.lstsq(terms * counts[:, None], counts, rcond=None)
    return _bounded(terms, counts, float(per_pass), float(per_token), guess)


def _bounded(
    terms: "np.ndarray[tuple[int, int], np.dtype[np.float64]]",
    counts: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    per_pass: float,
    per_token: float,
    guess: StepCost,
) -> StepCost:
    """The fit; where one cost falls below its bound, it stays there and the other is fitted beside it."""
    least_pass, least_token = _LEAST * guess.per_pass, _LEAST * guess.per_token
    squares = counts**2
    if per_pass < least_pass:
        x, rest = terms[:, 1], 1.0 - terms[:, 0] * least_pass
        return StepCost(least_pass, max(least_token, float((squares * x * rest).sum() / (squares * x * x).sum())))
    if per_token < least_token:
        x, rest = terms[:, 0], 1.0 - terms[:, 1] * least_token
        return StepCost(max(least_pass, float((squares * x * rest).sum() / (squares * x * x).sum())), least_token)
    return StepCost(per_pass, per_token)
