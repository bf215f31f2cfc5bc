"""One job while an executor has it: where it stands, what it has seen, where its adapter lies. Decides nothing."""

from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from contract.spec import JobConfig, Schedule, TaskSpec
from contract.states import JobStatus
from contract.wire import CheckpointRef, JobAssignment
from worker.checkpoint import Best, Progress
from worker.data import DataSet, Order
from worker.model.arena import Slot, rows_for
from worker.policy.admission import Demand
from worker.policy.early_exit import History, Policy, Verdict, smooth


class Stage(StrEnum):
    PENDING = "pending"  # never had a slot
    WARMUP = "warmup"
    PARKED = "parked"  # past its warmup, its place at the boundary still open
    TRAINING = "training"
    ENDING = "ending"  # decided; its adapter is on the way to storage
    OVER = "over"


_STAGES = {
    JobStatus.PENDING: Stage.PENDING,
    JobStatus.WARMUP: Stage.WARMUP,
    JobStatus.PARKED: Stage.PARKED,
    JobStatus.TRAINING: Stage.TRAINING,
}
# Warmup goes first: the boundary waits for every one of them, and parked jobs cost memory.
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
    warmup_val_loss: float | None = None
    slot: Slot | None = None
    best_weights: Tensor | None = None  # float32 [rank, W] on the host, while it has a slot
    checkpoint: CheckpointRef | None = None  # the last that the service was told of

    def __post_init__(self) -> None:
        self.order = Order(len(self.data.train), self.config.batch_size, self.config.seed)

    @classmethod
    def of(cls, group: str, assigned: JobAssignment, spec: TaskSpec, data: DataSet, progress: Progress | None) -> "JobRun":
        """The job as the service knows it, with the state of its checkpoint."""
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
        run.warmup_val_loss = assigned.warmup_val_loss
        return run

    @property
    def progress(self) -> Progress:
        """Its state as a checkpoint keeps it."""
        return Progress(self.step, self.ema, self.history, self.best, self.warmup_val_loss)

    @property
    def ranked(self) -> bool:
        """Whether a boundary still lies before it."""
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
        """Whether it is worth another checkpoint."""
        return self.unfinished and self.step > 0 and (self.checkpoint is None or self.checkpoint.step != self.step)

    @property
    def due(self) -> bool:
        """Whether it is to be evaluated after the step it just took."""
        return self.schedule.evaluates_at(self.step)

    @property
    def demand(self) -> Demand:
        """What it needs of the executor while it trains."""
        size = min(self.config.batch_size, len(self.data.train))
        tokens = round(size * self.data.mean_length)
        return Demand(self, self.group, size, tokens, self.data.longest, rows_for(self.config.rank), _TURNS.get(self.stage, 0))

    def learned(self, loss: float) -> None:
        """It took an optimizer step, on a batch of this loss."""
        self.step += 1
        self.ema = smooth(self.ema, loss, self.spec.early_exit.ema_alpha)

    def observe(self, policy: Policy, val_loss: float) -> Verdict | None:
        """It was evaluated; what the policy says to that."""
        assert self.ema is not None, "a job is evaluated after a step"
        self.history, verdict = policy.observe(self.history, self.ema, val_loss)
        return verdict
