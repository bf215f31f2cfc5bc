"""How long jobs live under early exit: exits per length of training, learned by shape class and by a task's own exits.

Values only: knows no clock, no throughput and no database. An exit is an event of a constant hazard, one before the warmup
boundary and one behind it, each per length of that phase; so what was lived and what ended are sums that can be added up,
and a Gamma prior with the same two numbers says what holds before anything was seen (Gamma-Poisson). Behind the boundary a
task's jobs share one life, since they train on the same data and tend to overfit together. The selection at the boundary is
no hazard: it keeps the policy's fraction.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from contract.states import ExitReason, JobStatus
from contract.task_spec import EarlyExitPolicy, TaskSpec

CLASS_JOBS, CLASS_TASKS = 24.0, 8.0  # a class counts at most as much as so many: its tasks differ from each other
MEMORY_JOBS, MEMORY_TASKS = 1000.0, 100.0  # a class forgets what lies further back
OWN = 2.0  # a task's own exits say more about its other jobs than another task's do
_POINTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # quantiles that stand for the whole of a hazard's distribution


@dataclass(frozen=True)
class JobProgress:
    """One job as far as it is known. Before a placement has counted rows, the calendar is made from the file's rows.

    `promoted` says that it passed the selection at the warmup boundary (or that there is none); `exit_reason` is that of an
    exited job and tells an exit from being ranked out. `rank` counts adapter rows.
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
class Lives:
    """Exits seen and phases lived (1 is one through the whole phase): jobs before the boundary, tasks behind it. Add them."""

    warm_exits: float = 0.0
    warm_lived: float = 0.0
    late_exits: float = 0.0
    late_lived: float = 0.0

    def __add__(self, other: "Lives") -> "Lives":
        return Lives(
            self.warm_exits + other.warm_exits,
            self.warm_lived + other.warm_lived,
            self.late_exits + other.late_exits,
            self.late_lived + other.late_lived,
        )

    def times(self, factor: float) -> "Lives":
        return Lives(self.warm_exits * factor, self.warm_lived * factor, self.late_exits * factor, self.late_lived * factor)

    def at_most(self, jobs: float, tasks: float) -> "Lives":
        """The same hazards on less evidence."""
        warm, late = min(1.0, jobs / max(jobs, self.warm_lived)), min(1.0, tasks / max(tasks, self.late_lived))
        return Lives(self.warm_exits * warm, self.warm_lived * warm, self.late_exits * late, self.late_lived * late)


NOTHING = Lives()
# ALTO 8.3 (figure 15): 72-83 % of samples saved with a warmup of 5 % and a cut of 25 %, two thirds of that by ranking. So
# 28 % of the jobs leave during warmup (hazard 0.33), and few after it (0.33): 81 % saved.
ALTO = Lives(2.0, 6.0, 0.5, 1.5)
TO_THE_END = Lives(0.05, 6.0, 0.03, 3.0)  # policy none: a job ends early only by a loss that is not finite


def shape_class(spec: TaskSpec) -> str:
    """Whose exits tell about whose: tasks with the same base, objective and early-exit parameters. At most 255 characters."""
    policy = spec.early_exit
    how = f"{policy.policy}-{policy.warmup_fraction:g}-{policy.keep_fraction:g}-{policy.tau_gap:g}-{policy.tau_slope:g}"
    return f"{spec.base_model}|{spec.objective.type}|{how}"


def prior(policy: EarlyExitPolicy) -> Lives:
    return TO_THE_END if policy.policy == "none" else ALTO


def lived(jobs: Iterable[JobProgress]) -> Lives:
    """What these jobs of one task have lived through so far; of a finished task, what its class learns from it."""
    warm, late = Lives(), []
    for job in jobs:
        warmup, rest = job.warmup_steps, job.total_steps - job.warmup_steps
        past = job.step > warmup or (job.promoted and job.step == warmup)
        exited = float(job.status == JobStatus.EXITED and job.exit_reason != ExitReason.UNDERPERFORMING)
        warm += Lives(0.0 if past else exited, min(1.0, job.step / max(1, warmup)))
        if past and rest > 0:
            late.append((exited, (job.step - warmup) / rest))
    if not late:
        return warm
    return warm + Lives(0, 0, sum(exits for exits, _ in late) / len(late), sum(part for _, part in late) / len(late))


def learned(before: Lives, finished: Lives) -> Lives:
    """A class's sums after one more finished task; what lies far back fades."""
    return before.at_most(MEMORY_JOBS, MEMORY_TASKS) + finished


def belief(policy: EarlyExitPolicy, of_class: Lives, own: Lives) -> Lives:
    """All that is known of a task's hazards: the prior, its class as far as that counts, and its own jobs."""
    return prior(policy) + of_class.at_most(CLASS_JOBS, CLASS_TASKS) + own.times(OWN)


@lru_cache(maxsize=4096)
def hazards(exits: float, phases: float) -> tuple[float, ...]:
    """The hazard per phase as five equally likely values: quantiles of its Gamma(exits, phases), by Wilson and Hilferty."""
    found = []
    for point in _POINTS:
        root = 1 - 1 / (9 * exits) + NormalDist().inv_cdf(point) / (3 * math.sqrt(exits))
        found.append(exits * max(root, 0.0) ** 3 / phases)
    return tuple(found)


def promotion(jobs: Iterable[JobProgress], policy: EarlyExitPolicy) -> float:
    """The probability that a job which is not yet ranked passes the boundary, if it lives to see it.

    The cut keeps ceil(`keep_fraction` x jobs alive at the boundary), so places already given are no longer to be had.
    """
    if policy.policy == "none":
        return 1.0
    jobs = list(jobs)
    given = sum(job.promoted for job in jobs)
    out = sum(job.exit_reason == ExitReason.UNDERPERFORMING for job in jobs)
    open_ = sum(unranked(job) for job in jobs)
    places = math.ceil(policy.keep_fraction * (given + out + open_)) - given
    return min(1.0, max(0, places) / open_) if open_ else 0.0


def unranked(job: JobProgress) -> bool:
    """Whether the selection at the boundary still lies before the job."""
    return not job.promoted and job.status in (JobStatus.PENDING, JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING)
