"""Calibration of the estimates: tasks end one after another, and each is predicted from the ones that ended before.

Runs the product's own estimate, survival and throughput; the truth comes from `job_outcomes` and a machine that the roofline
misjudges.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from benchmarks.simulator.job_outcomes import draw_lives, draw_nature, progress, walk
from contract.early_exit_policy import EarlyExitPolicy
from contract.states import JobStatus
from service.scheduler.core.gpu_types import hardware
from service.scheduler.estimate.survival import NOTHING, JobLifetimes, learned, lived
from service.scheduler.estimate.task_duration import LOADING_SECONDS, Estimate, TaskWork, estimate
from service.scheduler.estimate.throughput import ProfileKey, StepTimeProfile, ThroughputModel, key_of, measured

PARTS = (0.0, 0.25, 0.5, 0.75)  # of a run, at which its end is predicted
_BASES = (("llama-3-8b", 8_000_000_000, 1.4), ("qwen-3-8b", 8_200_000_000, 1.7), ("small-1b", 1_200_000_000, 2.2))
_GPU, _PRECISION = "NVIDIA H100 80GB HBM3", "bfloat16"


@dataclass(frozen=True)
class Foretold:
    """A prediction at this part of a task's run, and the truth; seconds left. `before` counts finished tasks."""

    before: int
    part: float
    said: Estimate
    true: float

    @property
    def inside(self) -> bool:
        return self.said.low <= self.true <= self.said.high


def calibrate(count: int, seed: int) -> Iterator[Foretold]:
    """`count` tasks of three bases, 1 to 48 jobs each."""
    draw = Random(seed)
    policy = EarlyExitPolicy()
    classes: dict[str, JobLifetimes] = {}
    profiles: dict[ProfileKey, StepTimeProfile] = {}
    for before in range(count):
        base, parameters, slower = draw.choice(_BASES)
        rows, epochs = round(draw.lognormvariate(math.log(4000), 0.8)) + 64, draw.choice((1, 2, 3))
        said_tokens = draw.uniform(60, 700)
        row_tokens = said_tokens * draw.lognormvariate(0, 0.1)  # bytes predict tokens only roughly
        lives = draw_lives(rows, epochs, draw.choice((1, 4, 8, 16, 32, 48)), draw_nature(draw), policy, draw)
        pace = slower * draw.lognormvariate(0, 0.08)

        def step_seconds(tokens: float, parameters: int = parameters, pace: float = pace) -> float:
            return 0.03 + pace * max(4.0 * parameters * tokens / 4.5e14, 4.0 * parameters / 2.8e12)

        segments = walk(lives, row_tokens, step_seconds)
        whole = sum(segment.seconds for segment in segments)
        taken = tuple((key, p) for key, p in profiles.items() if key.base == base)
        model = ThroughputModel(parameters, 2 * parameters, hardware(_GPU), taken)
        for part in PARTS:
            jobs = progress(lives, segments, part * whole)
            if not part:
                jobs = tuple(replace(job, status=JobStatus.PENDING) for job in jobs)
            if part:  # its own first steps are measured by now
                model = replace(model, profiles=_with(profiles, base, segments[0].tokens, step_seconds))
            work = TaskWork(jobs, policy, row_tokens if part else said_tokens, of_class=classes.get(base, NOTHING))
            yield Foretold(before, part, estimate(work, model, 1), (1 - part) * whole + LOADING_SECONDS)
        for segment in segments:
            key = key_of(base, _PRECISION, _GPU, segment.tokens)
            profiles[key] = measured(profiles.get(key), segment.tokens, segment.seconds / (segment.last - segment.first))
        classes[base] = learned(classes.get(base, NOTHING), lived(progress(lives, segments, whole + 1)))


def _with(
    profiles: dict[ProfileKey, StepTimeProfile], base: str, tokens: float, step_seconds: Callable[[float], float]
) -> tuple[tuple[ProfileKey, StepTimeProfile], ...]:
    key = key_of(base, _PRECISION, _GPU, tokens)
    known = {k: p for k, p in profiles.items() if k.base == base}
    return tuple((known | {key: measured(known.get(key), tokens, step_seconds(tokens))}).items())
