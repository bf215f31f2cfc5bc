"""One job on an executor: its progress, its losses, where its adapter is stored. Decides nothing."""

from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from contract.search_space import JobConfig
from contract.states import JobStatus
from contract.task_spec import Schedule, TaskSpec
from contract.wire import CheckpointRef, JobAssignment
from worker.adapters.job_checkpoint import Best, Progress
from worker.adapters.warm_start import WarmStart
from worker.data.dataset import DataSet, Order
from worker.model.arena import Slot, rows_for
from worker.policy.activations import Activations
from worker.policy.admission import Demand
from worker.policy.verdict import History, Policy, Verdict, smooth
from worker.replicas.dpo_reference import Reference
from worker.replicas.validation_pass import ValidationSubject


class Stage(StrEnum):
    PENDING = "pending"  # never had a slot
    WARMUP = "warmup"
    PARKED = "parked"  # past its warmup, its rank at the boundary still open
    TRAINING = "training"
    ENDING = "ending"  # decided; its adapter is being uploaded
    OVER = "over"


_STAGES = {
    JobStatus.PENDING: Stage.PENDING,
    JobStatus.WARMUP: Stage.WARMUP,
    JobStatus.PARKED: Stage.PARKED,
    JobStatus.TRAINING: Stage.TRAINING,
}
# Warmup goes first: the boundary waits for every job in warmup, and parked jobs cost memory.
_TURNS = {Stage.WARMUP: 0, Stage.PENDING: 1, Stage.TRAINING: 2}


@dataclass(eq=False)
class JobRun:
    """A job of one placement (`group`). It trains while it has a slot."""

    group: str
    job_id: str
    index: int
    config: JobConfig
    spec: TaskSpec
    data: DataSet
    schedule: Schedule
    stage: Stage
    promoted: bool
    order: Order = field(init=False)
    step: int = 0
    ema: float | None = None
    history: History = field(default_factory=History)
    best: Best | None = None
    rung_losses: list[float] = field(default_factory=list)  # validation losses at the rungs it has reached
    settled: int = 0  # how many of those rungs it has been judged at
    start: WarmStart | None = None  # the adapter that its first weights are made from
    reference: Reference | None = None  # under dpo
    activations: Activations = field(default_factory=lambda: Activations(False, "activations are kept"))  # shared by its task
    slot: Slot | None = None
    best_weights: Tensor | None = None  # float32 [rank, W] on the host, while it has a slot
    checkpoint: CheckpointRef | None = None  # the last that was reported to the service
    tenant_id: str = ""  # its tenant, for the node's cache

    def __post_init__(self) -> None:
        self.order = Order(len(self.data.train), self.config.batch_size, self.config.seed)

    @classmethod
    def of(cls, group: str, assigned: JobAssignment, spec: TaskSpec, data: DataSet, progress: Progress | None) -> "JobRun":
        """The job as the service assigned it, with the state of its checkpoint."""
        run = cls(
            group,
            assigned.job_id,
            assigned.index,
            assigned.config,
            spec,
            data,
            Schedule.of(spec, assigned.config, len(data.train)),
            _STAGES[assigned.status],
            assigned.promoted,
        )
        if progress is not None:
            run.step, run.ema, run.history, run.best = progress.step, progress.ema, progress.history, progress.best
            run.checkpoint = assigned.checkpoint
            run.rung_losses = list(progress.rung_losses)
        if assigned.warmup_val_loss is not None:  # also where the checkpoint is from before the boundary
            run.rung_losses[:1] = [assigned.warmup_val_loss]
        run.settled = max(1, len(run.rung_losses)) if run.promoted else 0
        return run

    @property
    def progress(self) -> Progress:
        """Its state for a checkpoint, without tensors."""
        return Progress(self.step, self.ema, self.history, self.best, tuple(self.rung_losses))

    @property
    def warmup_val_loss(self) -> float | None:
        """Its validation loss at the end of its warmup, once it is known."""
        return self.rung_losses[0] if self.rung_losses else None

    @property
    def unsettled(self) -> bool:
        """Whether it stands at a rung at which it is not judged yet."""
        return self.unfinished and len(self.rung_losses) > self.settled

    @property
    def ranked(self) -> bool:
        """Whether the warmup boundary is still ahead of it."""
        return self.schedule.boundary and not self.promoted

    @property
    def waits(self) -> bool:
        """Whether it would train if it had a slot."""
        return self.slot is None and self.stage in _TURNS

    @property
    def unfinished(self) -> bool:
        return self.stage not in (Stage.ENDING, Stage.OVER)

    @property
    def changed(self) -> bool:
        """Whether it is unfinished and has taken steps since its last checkpoint."""
        return self.unfinished and self.step > 0 and (self.checkpoint is None or self.checkpoint.step != self.step)

    @property
    def due(self) -> bool:
        """Whether it is to be evaluated after the step it just took."""
        return self.schedule.evaluates_at(self.step)

    @property
    def demand(self) -> Demand:
        """What it needs of the executor while it trains."""
        size = min(self.config.batch_size, len(self.data.train))
        tokens = round(size * self.data.train.mean_length)
        size *= self.data.train.per_row
        turn, left = _TURNS.get(self.stage, 0), tokens * self._steps_left
        rows, recompute = rows_for(self.config.rank), self.activations.recompute
        return Demand(self, self.group, size, tokens, self.data.longest, rows, turn, left, recompute)

    @property
    def _steps_left(self) -> float:
        """Steps that it is expected to take: those behind a boundary still ahead count by the fraction of jobs kept there."""
        warmup, total = self.schedule.warmup_steps if self.ranked else self.step, self.schedule.total_steps
        return max(0, warmup - self.step) + (self.spec.early_exit.keep_fraction if self.ranked else 1) * (
            total - max(warmup, self.step)
        )

    @property
    def examinee(self) -> ValidationSubject:
        """What to evaluate for its validation loss."""
        reference = self.reference.validation if self.reference is not None else ()
        return ValidationSubject(self.slot, self.data.validation, self.config.beta, reference)

    def learned(self, loss: float) -> None:
        """Record an optimizer step, on a batch of this loss."""
        self.step += 1
        self.ema = smooth(self.ema, loss, self.spec.early_exit.ema_alpha)

    def reached_rung(self, loss: float) -> bool:
        """Record this validation loss if the step just taken is a rung. Whether the job is still to be judged there."""
        if self.step not in self.schedule.rungs:
            return False
        rung = self.schedule.rungs.index(self.step)
        self.rung_losses[rung : rung + 1] = [loss]
        return rung >= self.settled

    def observe(self, policy: Policy, val_loss: float) -> Verdict | None:
        """Pass an evaluation to the policy; returns its verdict."""
        assert self.ema is not None, "a job is evaluated after a step"
        self.history, verdict = policy.observe(self.history, self.ema, val_loss)
        return verdict
