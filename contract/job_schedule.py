"""JobSchedule: when one job's warmup ends, and when it is evaluated and ranked, in optimizer steps. Pure."""

import math
from typing import Self

from contract.early_exit_policy import EarlyExitPolicy
from contract.evaluation_plan import Course, evaluations_for
from contract.job_config import JobConfig
from contract.strict import Strict
from contract.task_spec import TaskSpec
from contract.values.shares import share_of


class JobSchedule(Strict):
    """When one job's warmup ends, and when it is evaluated and ranked, in optimizer steps. full_at_rungs: whether evaluations
    at rungs are full; else they read the trend's rows alone, as between rungs (see evaluation_plan.py). milestones: after which
    steps texts are generated, beside those at its end."""

    total_steps: int
    warmup_steps: int
    eval_every: int
    rungs: tuple[int, ...]  # steps after which the job is ranked, warmup's end first; empty without such a boundary
    full_at_rungs: bool = True
    milestones: tuple[int, ...] = ()

    @property
    def has_boundary(self) -> bool:
        """Whether jobs are ranked at the end of warmup: not under policy `none`, nor where warmup lasts the whole training."""
        return bool(self.rungs)

    @classmethod
    def of(cls, spec: TaskSpec, config: JobConfig, train_rows: int) -> Self:
        """The schedule of `config` over `train_rows` rows: `epochs` passes; the last step of a pass may be short."""
        if train_rows < 1:
            raise ValueError("there are no rows to train on")
        total = spec.training.epochs * math.ceil(train_rows / config.batch_size)
        if spec.training.max_steps is not None:
            total = min(total, spec.training.max_steps)
        policy = spec.early_exit
        warmup = min(total, max(1, share_of(policy.warmup_fraction, total)))
        jobs = spec.search_space.size
        passing = policy.survivors(jobs)[1] / jobs
        rows_trained = total * min(config.batch_size, train_rows)
        often = evaluations_for(policy.max_evaluation_share, passing, policy.warmup_fraction, rows_trained)
        eval_every = policy.eval_every or max(1, total // often)
        rungs = tuple(_rungs(policy, warmup, total))
        return cls(
            total_steps=total,
            warmup_steps=warmup,
            eval_every=min(eval_every, total),
            rungs=rungs,
            full_at_rungs=policy.ranks(jobs),
            milestones=spec.evaluation.milestone_steps(rungs[0] + 1 if rungs else 1, total) if spec.evaluation else (),
        )

    def evaluates_at(self, step: int) -> bool:
        """Whether validation runs after this step (1-based)."""
        return step % self.eval_every == 0 or step == self.total_steps or step in self.rungs

    @property
    def evaluations(self) -> int:
        """Number of evaluations if the job trains to its end."""
        course = self.course(1, 1)
        return course.before + course.after + course.cuts

    def course(self, jobs: int, batch_size: int) -> Course:
        """The job's evaluations, as one of so many jobs; its steps take `batch_size` rows each."""

        def trends(before: int) -> int:
            """Evaluations of the trend up to this step."""
            last = before == self.total_steps and before % self.eval_every != 0
            ranked = sum(rung <= before and rung % self.eval_every == 0 for rung in self.rungs)
            return before // self.eval_every + last - ranked

        if not self.full_at_rungs or not self.rungs:  # every evaluation is one of its trend
            return Course(jobs, self.total_steps * batch_size, 0, 0, trends(self.total_steps) + len(self.rungs))
        before = trends(self.rungs[0])
        return Course(jobs, self.total_steps * batch_size, len(self.rungs), before, trends(self.total_steps) - before)


def _rungs(policy: EarlyExitPolicy, warmup: int, total: int) -> list[int]:
    """Steps at which jobs are ranked: one under ALTO, at growing intervals under ASHA."""
    if policy.policy == "none":
        return []
    rungs, step = [], warmup
    while step < total:
        rungs.append(step)
        if policy.policy != "asha":
            break
        step *= policy.reduction_factor
    return rungs
