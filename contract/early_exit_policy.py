"""EarlyExitPolicy: when a task's jobs are stopped, and what their evaluations may cost. Holds numbers, strictly validated."""

import math
from typing import Annotated, Literal

from pydantic import Field

from contract.strict import NO_BOOL, Strict
from contract.values.shares import share_of

MAX_STEPS = 10_000_000  # per job
PAIRED_CUT = (0.5, 1.5)  # times keep_fraction: the fewest and the most that a paired cut keeps; their mean is ALTO's own


class EarlyExitPolicy(Strict):
    """When a job is stopped. The numbers' names and defaults are ALTO's (Algorithm 1, section 5), but for `warmup_fraction`,
    whose 0.05 there cuts jobs of few steps before a large learning rate has settled (docs/NUMERICS.md, What a search loses).

    `alto` is Algorithm 1 to the letter. `alto_guarded`, the default, believes its patterns only once a job's validation loss
    has stopped improving, as the paper's text has it, and its cut after warmup keeps every job that is not surely worse than
    the best by a paired test over the validation rows: at least half and at most one and a half times `keep_fraction`, and that
    many where no job is surely better than the base yet.
    `asha` ranks each job at rungs, where it stops unless it is among the best 1 / `reduction_factor` that have come so far
    (Li et al. 2020, the stopping form). `none` trains every job to its end.
    """

    policy: Literal["alto", "alto_guarded", "asha", "none"] = "alto_guarded"
    warmup_fraction: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.1
    keep_fraction: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.25
    ema_alpha: Annotated[float, Field(gt=0, le=1), NO_BOOL] = 0.1
    window: Annotated[int, Field(ge=2, le=100, strict=True)] = 2
    patience_divergence: Annotated[int, Field(ge=1, le=100, strict=True)] = 2
    patience_overfitting: Annotated[int, Field(ge=1, le=100, strict=True)] = 2
    tau_slope: Annotated[float, Field(ge=0, le=1e6), NO_BOOL] = 0.001
    tau_gap: Annotated[float, Field(gt=0, le=1e6), NO_BOOL] = 0.1
    guard_patience: Annotated[int, Field(ge=0, le=1000, strict=True)] = Field(
        default=6, description="Of alto_guarded: evaluations without a new lowest validation loss before a pattern ends a job."
    )
    reduction_factor: Annotated[int, Field(ge=2, le=64, strict=True)] = Field(
        default=4, description="Of asha, whose first rung is where warmup ends; each next one is so many times as far."
    )
    eval_every: Annotated[int, Field(ge=1, le=MAX_STEPS, strict=True)] | None = Field(
        default=None,
        description="Steps between evaluations; left out, about a thirtieth of the steps, more of a small data set.",
    )
    max_evaluation_share: Annotated[float, Field(gt=0, le=10), NO_BOOL] | None = Field(
        default=0.15,
        description=(
            "Evaluations take at most this part of the tokens that training all jobs to their end would take. The cut after "
            "warmup and the end of a job read as many validation rows as that allows, at least 32, evaluations between them "
            "fewer, at least 8; null: each reads all of them, up to 4,096."
        ),
    )

    def ranks(self, jobs: int) -> bool:
        """Whether a cut of so many jobs can stop any."""
        return self.survivors(jobs)[0] < jobs

    def survivors(self, jobs: int) -> tuple[int, int]:
        """How many of so many jobs pass a cut: at least, and at most."""
        match self.policy:
            case "none":
                return jobs, jobs
            case "asha":
                return 1, math.ceil(jobs / self.reduction_factor)
            case "alto":
                return self.kept_of(jobs), self.kept_of(jobs)
            case "alto_guarded":
                fewest, most = (min(jobs, self.kept_of(jobs, part)) for part in PAIRED_CUT)
                return fewest, most

    def kept_of(self, jobs: int, part: float = 1.0) -> int:
        """`part` times `keep_fraction` of so many jobs, rounded up; at least one."""
        return max(1, share_of(part * self.keep_fraction, jobs))
