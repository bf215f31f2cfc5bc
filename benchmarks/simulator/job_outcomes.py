"""Simulated job outcomes: random loss curves under the worker's own early exit, and the time they take.

The curves know no hazard rates: learning rates are too low, good or too high for their task, and a task overfits more or less.
So the estimator's model is tested on outcomes that it did not generate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from contract.early_exit_policy import EarlyExitPolicy
from contract.states import ExitReason, JobStatus
from contract.values.shares import share_of
from service.scheduler.estimate.survival import ReportedProgress
from worker.policy.early_exit.policy_interface import History, Standing, Verdict, smooth
from worker.policy.early_exit.policy_selection import policy_of

_EVALUATIONS = 60
Observe = Callable[[History, float, float], tuple[History, Verdict | None]]


@dataclass(frozen=True)
class Nature:
    """A task's data: the best learning rate (log10), how soon it overfits (0: never), how noisy its losses are."""

    best: float
    overfits: float
    noise: float


@dataclass(frozen=True)
class Life:
    """A job's schedule and the step at which it ended, for `reason` or (None) because it completed."""

    batch_size: int
    rank: int
    total_steps: int
    warmup_steps: int
    end: int
    reason: ExitReason | None


@dataclass(frozen=True)
class Segment:
    """Steps during which the same jobs train: `first` to `last` of the warmup, or after the boundary if `late`."""

    late: bool
    first: int
    last: int
    tokens: float  # per step
    seconds: float  # for all steps


def draw_nature(draw: Random) -> Nature:
    return Nature(draw.uniform(-4.2, -3.2), max(0.0, draw.gauss(0.0, 0.2)), draw.uniform(0.002, 0.01))


def draw_lives(rows: int, epochs: int, count: int, nature: Nature, policy: EarlyExitPolicy, draw: Random) -> list[Life]:
    """`count` jobs under the real policy; ranks and batch sizes as in tLoRA 4.1, learning rates drawn at random."""
    early_exit = policy_of(policy)
    begun = [_Job(rows, epochs, nature, policy, draw) for _ in range(count)]
    for job in begun:
        job.train(early_exit.on_evaluation, job.warmup)
    settled = early_exit.decide_ranks(Standing(at, (job.losses[-1],)) for at, job in enumerate(begun) if job.reason is None)
    for at, verdict in settled.items():
        if verdict is None:
            begun[at].train(early_exit.on_evaluation, begun[at].total)
        else:
            begun[at].reason = verdict.reason
    return [Life(job.batch_size, job.rank, job.total, job.warmup, job.step, job.reason) for job in begun]


class _Job:
    def __init__(self, rows: int, epochs: int, nature: Nature, policy: EarlyExitPolicy, draw: Random) -> None:
        self.batch_size, self.rank = draw.choice((1, 2, 4, 8)), draw.choice((2, 4, 8, 16))
        self.total = epochs * math.ceil(rows / self.batch_size)
        self.warmup = max(1, share_of(policy.warmup_fraction, self.total))
        self.every = max(1, self.total // _EVALUATIONS)
        self.step, self.losses = 0, [math.nan]
        self.reason: ExitReason | None = None
        self._nature, self._draw, self._alpha = nature, draw, policy.ema_alpha
        self._off = draw.uniform(-5.5, -2.5) - nature.best  # distance of its learning rate from the best, in decades
        self._history = History()
        self._smoothed: float | None = None

    def train(self, observe: Observe, until: int) -> None:
        """Train to `until`, or to the evaluation that ends the job."""
        while self.reason is None and self.step < until:
            self.step = min(until, (self.step // self.every + 1) * self.every)
            train, val = self._losses(self.step / self.total)
            self._smoothed = smooth(self._smoothed, train, 1 - (1 - self._alpha) ** self.every)
            self.losses.append(val)
            self._history, verdict = observe(self._history, self._smoothed, val)
            if verdict:
                self.reason = verdict.reason

    def _losses(self, part: float) -> tuple[float, float]:
        """Training and validation loss after this part of training."""
        pace = 25 * 10 ** (0.8 * min(self._off, 0.5))
        train = 0.9 + 0.12 * self._off**2 + 1.5 * math.exp(-pace * part)
        if self._off > 0.75:  # too high: the loss falls a little, then rises
            train += 4 * (self._off - 0.75) * max(0.0, part - 0.01) * 10
        gap = 0.02 + self._nature.overfits * max(0.0, part - 0.15) * 10 ** (0.3 * min(self._off, 0.5))
        return train + self._draw.gauss(0, self._nature.noise), train * (1 + gap) + self._draw.gauss(0, self._nature.noise)


def walk(lives: Sequence[Life], row_tokens: float, step_seconds: Callable[[float], float]) -> list[Segment]:
    """The whole run on one GPU: all warmups together, then all promoted jobs; finished jobs leave the step."""
    found = []
    for late in (False, True):
        last = 0
        ends = [(_length(life, late), life) for life in lives if _length(life, late) > 0]
        for end in sorted({end for end, _ in ends}):
            tokens = row_tokens * sum(life.batch_size for until, life in ends if until >= end)
            found.append(Segment(late, last, end, tokens, (end - last) * step_seconds(tokens)))
            last = end
    return found


def progress(lives: Sequence[Life], segments: Sequence[Segment], at: float) -> tuple[ReportedProgress, ...]:
    """Every job's progress `at` seconds into the run."""
    late, step = False, 0.0
    for segment in segments:
        late = segment.late
        if at < segment.seconds:
            step = segment.first + (segment.last - segment.first) * at / segment.seconds
            break
        at, step = at - segment.seconds, segment.last
    return tuple(_stands(life, late, int(step)) for life in lives)


def promoted(life: Life) -> bool:
    return life.end > life.warmup_steps or (life.end == life.total_steps and life.reason is None)


def _length(life: Life, late: bool) -> int:
    return max(0, life.end - life.warmup_steps) if late else min(life.end, life.warmup_steps)


def _stands(life: Life, late: bool, step: int) -> ReportedProgress:
    here = (life.warmup_steps if late else 0) + step
    ahead = here < life.end and (promoted(life) or not late)
    if ahead:
        status = JobStatus.TRAINING if late else JobStatus.WARMUP
    elif not late and here >= life.warmup_steps and (promoted(life) or life.reason == ExitReason.UNDERPERFORMING):
        status = JobStatus.PARKED
    else:
        status = JobStatus.EXITED if life.reason else JobStatus.COMPLETED
    reason = life.reason if status == JobStatus.EXITED else None
    done = min(here, life.end) if late else min(here, life.end, life.warmup_steps)
    passed = promoted(life) and (late or life.total_steps == life.warmup_steps)
    return ReportedProgress(status, done, life.total_steps, life.warmup_steps, life.batch_size, passed, reason, life.rank)
