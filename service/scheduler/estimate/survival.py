"""Survival of jobs under early exit: exit rates per phase of training, learned by shape class and from a task's own exits.

Values only: knows no clock, no throughput and no database. Exits have a constant hazard per phase, one before the warmup
boundary and one after it. So exposure and exits are sums that add up, and a Gamma prior is the same two numbers
(Gamma-Poisson). After the boundary a task's jobs share one hazard and count as one, since they train on the same data and tend
to overfit together. The selection at the boundary is no hazard: it keeps the policy's fraction.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from contract.early_exit_policy import EarlyExitPolicy
from contract.states import ExitReason, JobStatus
from contract.task_spec import TaskSpec

CLASS_JOBS, CLASS_TASKS = 24.0, 8.0  # cap on a class's evidence, in jobs and tasks: its tasks differ
MEMORY_JOBS, MEMORY_TASKS = 1000.0, 100.0  # a class's memory: older evidence is scaled down to this
OWN = 2.0  # factor on a task's own exits, which predict its other jobs better than another task's do
_POINTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles that represent a hazard's distribution


@dataclass(frozen=True)
class ReportedProgress:
    """One job's known progress. Before a placement has counted rows, step counts are derived from the file's rows.

    `promoted`: it passed the selection at the warmup boundary (or there is none); `exit_reason`, for an exited job,
    distinguishes an early exit from being ranked out. `rank` counts adapter rows.
    """

    status: JobStatus
    step: int
    total_steps: int
    warmup_steps: int
    batch_size: int
    promoted: bool
    exit_reason: ExitReason | None = None
    rank: int = 16


@dataclass(frozen=True)
class JobLifetimes:
    """Exits, and phases lived (1 is one whole phase): of jobs before the boundary, of tasks after it. Additive."""

    warm_exits: float = 0.0
    warm_lived: float = 0.0
    late_exits: float = 0.0
    late_lived: float = 0.0

    def __add__(self, other: "JobLifetimes") -> "JobLifetimes":
        return JobLifetimes(
            self.warm_exits + other.warm_exits,
            self.warm_lived + other.warm_lived,
            self.late_exits + other.late_exits,
            self.late_lived + other.late_lived,
        )

    def times(self, factor: float) -> "JobLifetimes":
        return JobLifetimes(
            self.warm_exits * factor, self.warm_lived * factor, self.late_exits * factor, self.late_lived * factor
        )

    def at_most(self, jobs: float, tasks: float) -> "JobLifetimes":
        """The same hazards with the evidence capped."""
        warm, late = min(1.0, jobs / max(jobs, self.warm_lived)), min(1.0, tasks / max(tasks, self.late_lived))
        return JobLifetimes(self.warm_exits * warm, self.warm_lived * warm, self.late_exits * late, self.late_lived * late)


NOTHING = JobLifetimes()
# ALTO 8.3 (figure 15): 72-83 % of samples saved with a warmup of 5 % and a cut of 25 %, two thirds of that by ranking. So
# 28 % of the jobs leave during warmup (hazard 0.33), and few after it (0.33): 81 % saved.
ALTO = JobLifetimes(2.0, 6.0, 0.5, 1.5)
TO_THE_END = JobLifetimes(0.05, 6.0, 0.03, 3.0)  # policy none: a job ends early only by a loss that is not finite


def shape_class(spec: TaskSpec) -> str:
    """Groups tasks that share learned exits: same base, objective and early-exit parameters. At most 255 characters."""
    policy = spec.early_exit
    how = f"{policy.policy}-{policy.warmup_fraction:g}-{policy.keep_fraction:g}-{policy.tau_gap:g}-{policy.tau_slope:g}"
    return f"{spec.base_model}|{spec.objective.type}|{how}"


def prior_lifetimes(policy: EarlyExitPolicy) -> JobLifetimes:
    return TO_THE_END if policy.policy == "none" else ALTO


def lived(jobs: Iterable[ReportedProgress]) -> JobLifetimes:
    """Exits and phases of one task's jobs so far; for an ended task, what its class learns from it."""
    warm, late = JobLifetimes(), []
    for job in jobs:
        warmup, rest = job.warmup_steps, job.total_steps - job.warmup_steps
        past = job.step > warmup or (job.promoted and job.step == warmup)
        exited = float(job.status == JobStatus.EXITED and job.exit_reason != ExitReason.UNDERPERFORMING)
        warm += JobLifetimes(0.0 if past else exited, min(1.0, job.step / max(1, warmup)))
        if past and rest > 0:
            late.append((exited, (job.step - warmup) / rest))
    if not late:
        return warm
    return warm + JobLifetimes(0, 0, sum(exits for exits, _ in late) / len(late), sum(part for _, part in late) / len(late))


def learned(before: JobLifetimes, finished: JobLifetimes) -> JobLifetimes:
    """A class's sums after one more ended task; older evidence decays."""
    return before.at_most(MEMORY_JOBS, MEMORY_TASKS) + finished


def belief(policy: EarlyExitPolicy, of_class: JobLifetimes, own: JobLifetimes) -> JobLifetimes:
    """The posterior of a task's hazards: the prior, its class with capped evidence, and its own jobs."""
    return prior_lifetimes(policy) + of_class.at_most(CLASS_JOBS, CLASS_TASKS) + own.times(OWN)


@lru_cache(maxsize=4096)
def hazards(exits: float, phases: float) -> tuple[float, ...]:
    """The hazard per phase as five equally likely values: quantiles of Gamma(exits, phases), after Wilson and Hilferty."""
    found = []
    for point in _POINTS:
        root = 1 - 1 / (9 * exits) + NormalDist().inv_cdf(point) / (3 * math.sqrt(exits))
        found.append(exits * max(root, 0.0) ** 3 / phases)
    return tuple(found)


def promotion(jobs: Iterable[ReportedProgress], policy: EarlyExitPolicy) -> float:
    """The probability that a job which is not yet ranked passes the boundary, if it reaches it.

    The cut keeps `keep_fraction` of the jobs alive at the boundary, rounded up; jobs that have already passed use up places.
    """
    if policy.policy == "none":
        return 1.0
    jobs = list(jobs)
    given = sum(job.promoted for job in jobs)
    out = sum(job.exit_reason == ExitReason.UNDERPERFORMING for job in jobs)
    open_ = sum(unranked(job) for job in jobs)
    places = policy.kept_of(given + out + open_) - given
    return min(1.0, max(0, places) / open_) if open_ else 0.0


def unranked(job: ReportedProgress) -> bool:
    """Whether the job has yet to pass the selection at the boundary."""
    return not job.promoted and job.status in (JobStatus.PENDING, JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING)
