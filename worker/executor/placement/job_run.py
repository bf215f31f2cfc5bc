"""One job on an executor: its fixed facts, and its record as of now. Decides nothing. Its adapter lies in the adapter store."""

from dataclasses import dataclass, replace
from typing import Any

from contract.job_schedule import JobSchedule
from contract.messages.placement_messages import CheckpointRef, JobAssignment
from contract.messages.report_messages import JobCompleted, JobExited
from contract.task_spec import TaskSpec
from worker.data.dataset import DataSet
from worker.model.arena import rows_for
from worker.policy.activations import Activations
from worker.policy.admission import Demand
from worker.policy.early_exit.policy_interface import Policy, Verdict
from worker.policy.job_record import AVERAGED, Best, Evaluated, JobKey, JobProgress, JobRecord, RecordChange, Stage, reduced
from worker.replicas.dpo_reference import Reference
from worker.replicas.training_job import TrainingJob
from worker.replicas.validation_pass import EvaluationRequest, ValidationResult

# Warmup goes first: the boundary waits for every job in warmup, and parked jobs cost memory.
_TURNS = {Stage.WARMUP: 0, Stage.PENDING: 1, Stage.TRAINING: 2}


@dataclass(eq=False)
class JobRun:
    """A job of one placement. `record` changes by `apply` alone."""

    job_id: str
    job: TrainingJob
    spec: TaskSpec
    schedule: JobSchedule
    record: JobRecord

    @classmethod
    def of(
        cls,
        placement: str,
        assigned: JobAssignment,
        spec: TaskSpec,
        data: DataSet,
        progress: JobProgress | None,
        activations: Activations,
    ) -> "JobRun":
        """The job as the service assigned it, with the state of its checkpoint."""
        schedule, key = JobSchedule.of(spec, assigned.config, len(data.train)), JobKey(placement, assigned.index)
        job = TrainingJob(key, assigned.config, data, schedule.total_steps, spec.training.max_grad_norm, activations)
        return cls(assigned.job_id, job, spec, schedule, JobRecord.of(assigned, progress))

    def apply(self, change: RecordChange) -> None:
        self.record = reduced(self.record, change)

    def refer(self, reference: Reference) -> None:
        """Give the job its task's reference, before its first step."""
        self.job = replace(self.job, reference=reference)

    @property
    def key(self) -> JobKey:
        return self.job.key

    @property
    def index(self) -> int:
        return self.key.job

    @property
    def stage(self) -> Stage:
        return self.record.stage

    @property
    def progress(self) -> JobProgress:
        """All of its state that a checkpoint holds beside tensors."""
        return self.record.progress

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def best(self) -> Best | None:
        return self.progress.best

    @property
    def checkpoint(self) -> CheckpointRef | None:
        return self.record.checkpoint

    @property
    def warmup_val_loss(self) -> float | None:
        """Its validation loss at the end of its warmup, once it is known."""
        return self.progress.rung_losses[0] if self.progress.rung_losses else None

    @property
    def before_boundary(self) -> bool:
        """Whether the warmup boundary is still ahead of it."""
        return self.schedule.has_boundary and not self.record.promoted

    @property
    def warms_up(self) -> bool:
        """Whether the job may still come to its boundary, or wait there for its rank."""
        return self.before_boundary and self.stage not in (Stage.ENDING, Stage.ENDED)

    @property
    def trainable(self) -> bool:
        """Whether it would train if it had arena rows. Under dpo, once its task's reference is known."""
        return self.stage in _TURNS and (self.job.reference is not None or self.spec.objective.type != "dpo")

    @property
    def unfinished(self) -> bool:
        return self.record.unfinished

    @property
    def evaluation_due(self) -> bool:
        """Whether it is to be evaluated after the step it just took."""
        return self.schedule.evaluates_at(self.step)

    def steps_until_due(self, most: int) -> int:
        """How many steps it takes, up to so many, until it is evaluated or asked for texts."""
        steps = range(self.step + 1, self.step + most)
        due = (step for step in steps if self.schedule.evaluates_at(step) or step in self.schedule.milestones)
        return next(due, self.step + most) - self.step

    @property
    def milestone_due(self) -> int | None:
        """The last milestone that it has reached, a step, where it was not asked for texts at that one or a later one."""
        reached = [step for step in self.schedule.milestones if self.record.milestone < step <= self.step]
        return reached[-1] if reached and self.stage is Stage.TRAINING else None

    @property
    def boundary_texts_due(self) -> bool:
        """Whether it stands at its boundary, and its rank there waits for its texts' scores."""
        at_first = self.record.awaits_rank and len(self.progress.rung_losses) == 1
        return self.spec.cut_metric is not None and at_first and self.record.milestone < self.schedule.rungs[0]

    @property
    def demand(self) -> Demand:
        """What it needs of the executor while it trains."""
        train, config = self.job.data.train, self.job.config
        size = min(config.batch_size, len(train))
        tokens = round(size * train.mean_length)
        turn, left = _TURNS.get(self.stage, 0), tokens * self._steps_left
        return Demand(
            key=self.key,
            placement=self.key.placement,
            batch_size=size * train.per_row,
            tokens=tokens,
            longest=self.job.data.longest,
            adapter_rows=rows_for(config.rank),
            turn=turn,
            left=left,
            recompute=self.job.activations.recompute,
        )

    @property
    def _steps_left(self) -> float:
        """Steps that it is expected to take: those behind a boundary still ahead count by the fraction of jobs kept there."""
        warmup, total = self.schedule.warmup_steps if self.before_boundary else self.step, self.schedule.total_steps
        return max(0, warmup - self.step) + (self.spec.early_exit.keep_fraction if self.before_boundary else 1) * (
            total - max(warmup, self.step)
        )

    @property
    def trend_is_all(self) -> bool:
        """Whether its trend is evaluated on all validation rows."""
        return self.job.data.trend_rows >= len(self.job.data.validation)

    def evaluation_request(self, full: bool) -> EvaluationRequest:
        """What to evaluate, but for the place of its adapter: its trend's rows, or in full, row by row."""
        data = self.job.data
        full = full or self.trend_is_all  # so that equal rows give equal bits
        rows, metric, part = (data.validation, self.spec.metric, data.trend_rows) if full else (data.trend, None, None)
        reference = self.job.reference.validation[: len(rows.sequences)] if self.job.reference is not None else ()
        return EvaluationRequest(None, rows, self.job.config.beta, reference, metric, part)

    @property
    def full_evaluation_at_boundary(self) -> ValidationResult | None:
        """The full evaluation of its best weights, where they are those that it was ranked by; counted as no tokens again."""
        progress = self.progress
        if self.best is None or self.best.step not in self.schedule.rungs[:1] or progress.boundary_scores is None:
            return None
        return ValidationResult(progress.rung_losses[0], 0, scores=progress.boundary_scores)

    def completed_event(self) -> JobCompleted:
        return JobCompleted(job=self.index, step=self.step, **self._told_at_its_end)

    def exited_event(self, verdict: Verdict) -> JobExited:
        told = {"reason": verdict.reason, "evidence": verdict.evidence}
        return JobExited(job=self.index, step=self.step, **told, **self._told_at_its_end)

    @property
    def _told_at_its_end(self) -> dict[str, Any]:
        step, loss = (self.best.step, self.best.val_loss) if self.best is not None else (None, None)
        several = len(self.schedule.rungs) > 1
        return {
            "best_step": step,
            "best_val_loss": loss,
            "rung_losses": list(self.progress.rung_losses) if several else [],
        }

    @property
    def most_averaged(self) -> int:
        """How many of its weights it keeps whose losses are lowest. Up to the end of warmup the best alone: most jobs end
        there. By its step, so that one that repeats steps keeps the same."""
        return 1 if any(self.step <= rung for rung in self.schedule.rungs[:1]) else AVERAGED

    def rung(self) -> int | None:
        """The rung at which it stands after the step just taken, if it does."""
        return self.schedule.rungs.index(self.step) if self.step in self.schedule.rungs else None

    def ask_policy(self, policy: Policy, val_loss: float) -> tuple[RecordChange, Verdict | None]:
        """Pass an evaluation to the policy; returns the change to apply, and the verdict."""
        assert self.progress.ema is not None, "a job is evaluated after a step"
        history, verdict = policy.on_evaluation(self.progress.history, self.progress.ema, val_loss)
        return Evaluated(val_loss, history, self.most_averaged), verdict
