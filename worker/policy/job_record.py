"""A job's record on an executor: an immutable value, reduced from changes. Decides nothing.

Pure: a record and a change in, the next record out. Knows no tensors and no storage. A change is not an event:
placement_run.py applies it, and reports it to the service as events (contract/messages/report_messages.py).
"""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from contract.messages.placement_messages import CheckpointRef, JobAssignment
from contract.row_scores import RowScores
from contract.states import ExitReason, JobStatus
from worker.policy.early_exit.policy_interface import History, Verdict, smooth


class JobKey(NamedTuple):
    """Names a job on an executor: its placement, and its index in the task."""

    placement: str
    job: int

    def __str__(self) -> str:
        return f"job {self.job} of placement {self.placement}"


class Stage(StrEnum):
    PENDING = "pending"  # never had arena rows
    WARMUP = "warmup"
    PARKED = "parked"  # past its warmup, its rank at the boundary still open
    TRAINING = "training"
    ENDING = "ending"  # decided; its adapter is being chosen, and uploaded
    ENDED = "ended"


_STAGES = {
    JobStatus.PENDING: Stage.PENDING,
    JobStatus.WARMUP: Stage.WARMUP,
    JobStatus.PARKED: Stage.PARKED,
    JobStatus.TRAINING: Stage.TRAINING,
}


@dataclass(frozen=True)
class Best:
    """Where a job's validation loss was lowest."""

    step: int
    val_loss: float


AVERAGED = 3  # of a job's weights with the lowest losses: those that its adapter may be the mean of (docs/NUMERICS.md)


@dataclass(frozen=True)
class JobProgress:
    """All of a job's state that its checkpoint holds beside tensors. `ema` is None before the first step. lowest: where its
    validation losses were lowest, in their order; the weights of each are kept."""

    step: int = 0
    ema: float | None = None
    history: History = field(default_factory=History)
    lowest: tuple[Best, ...] = ()
    rung_losses: tuple[float, ...] = ()  # validation losses at the rungs it has reached
    boundary_scores: RowScores | None = None  # of each validation row at the first rung

    @property
    def best(self) -> Best | None:
        return self.lowest[0] if self.lowest else None

    @property
    def place(self) -> int | None:
        """Which of the lowest losses it has at its present step, from 0; None: a higher one."""
        return next((place for place, one in enumerate(self.lowest) if one.step == self.step), None)


@dataclass(frozen=True)
class JobRecord:
    """rungs_decided: at how many of its rungs its rank was decided. checkpoint: the last that was reported to the service.
    milestone: the last one at which its texts were asked for, a step; 0: none. Its boundary is one once its texts there were
    scored, or could not be: text_scores, of each prompt by the text metric that the cut goes by."""

    stage: Stage
    promoted: bool = False
    progress: JobProgress = field(default_factory=JobProgress)
    rungs_decided: int = 0
    checkpoint: CheckpointRef | None = None
    milestone: int = 0
    text_scores: RowScores | None = None

    @classmethod
    def of(cls, assigned: JobAssignment, progress: JobProgress | None) -> "JobRecord":
        """The record of a job as the service assigned it, with the state of its checkpoint."""
        restored = progress or JobProgress()
        if assigned.warmup_val_loss is not None:  # also where the checkpoint is from before the boundary
            scores = assigned.boundary_scores or restored.boundary_scores
            restored = replace(
                restored, rung_losses=(assigned.warmup_val_loss, *restored.rung_losses[1:]), boundary_scores=scores
            )
        rungs_decided = max(1, len(restored.rung_losses)) if assigned.promoted else 0
        checkpoint = assigned.checkpoint if progress is not None else None
        texts = assigned.milestone, assigned.boundary_text_scores
        return cls(_STAGES[assigned.status], assigned.promoted, restored, rungs_decided, checkpoint, *texts)

    @property
    def unfinished(self) -> bool:
        return self.stage not in (Stage.ENDING, Stage.ENDED)

    @property
    def awaits_rank(self) -> bool:
        """Whether it stands at a rung at which its rank is not decided yet."""
        return self.unfinished and len(self.progress.rung_losses) > self.rungs_decided

    @property
    def unsaved(self) -> bool:
        """Whether it is unfinished and has taken steps since its last checkpoint."""
        step = self.progress.step
        return self.unfinished and step > 0 and (self.checkpoint is None or self.checkpoint.step != step)


@dataclass(frozen=True)
class WarmupBegan:
    """The job got its first arena rows."""


@dataclass(frozen=True)
class TrainingBegan:
    """No boundary is ahead of the job: it trains to its end from its first step."""


@dataclass(frozen=True)
class Parked:
    """The job finished its warmup, and its rank is still open."""


@dataclass(frozen=True)
class Promoted:
    """The job's rank was decided at all its rungs so far, and it continues."""


@dataclass(frozen=True)
class StepsTaken:
    """Optimizer steps one after another, on batches of these losses. A loss that is not finite moved no weights, and is not
    smoothed."""

    losses: tuple[float, ...]
    ema_alpha: float


@dataclass(frozen=True)
class Evaluated:
    """A validation loss, and the policy's state after it. most: how many of the lowest losses are kept."""

    val_loss: float
    history: History
    most: int = AVERAGED


@dataclass(frozen=True)
class RungReached:
    """The job's validation loss at its rung of this number, by a full evaluation (of the trend's rows where the
    schedule affords no full one), with the rows' scores. A job that resumed before a rung reaches it again."""

    rung: int
    val_loss: float
    scores: RowScores | None = None


@dataclass(frozen=True)
class BestEvaluated:
    """The job ends, and its weights after `step` had a full evaluation. A loss that is not
    finite leaves it no best."""

    step: int
    val_loss: float


@dataclass(frozen=True)
class CheckpointKnown:
    """The service knows this checkpoint."""

    ref: CheckpointRef


@dataclass(frozen=True)
class MilestonePassed:
    """Its texts were asked for at this milestone, a step of its schedule."""

    milestone: int


@dataclass(frozen=True)
class BoundaryTextsScored:
    """Its texts at its boundary, after this step, were scored by the text metric that the cut goes by; None: could not be."""

    step: int
    scores: RowScores | None


@dataclass(frozen=True)
class Ending:
    """The job is decided; its adapter is chosen, and stored."""


@dataclass(frozen=True)
class JobEnded:
    """The job's end was recorded."""


ProgressChange = StepsTaken | Evaluated | RungReached | BestEvaluated  # those that change the job's progress
RecordChange = (
    WarmupBegan
    | TrainingBegan
    | Parked
    | Promoted
    | ProgressChange
    | CheckpointKnown
    | MilestonePassed
    | BoundaryTextsScored
    | Ending
    | JobEnded
)

_UNFINISHED = frozenset({Stage.PENDING, Stage.WARMUP, Stage.PARKED, Stage.TRAINING})
_STEPPING = frozenset({Stage.WARMUP, Stage.TRAINING})
_FROM: dict[type, frozenset[Stage]] = {  # stages in which a change is allowed
    WarmupBegan: frozenset({Stage.PENDING}),
    TrainingBegan: frozenset({Stage.WARMUP}),
    Parked: frozenset({Stage.WARMUP}),
    Promoted: _STEPPING | {Stage.PARKED},
    StepsTaken: _STEPPING,
    Evaluated: _STEPPING,
    RungReached: _STEPPING,
    BestEvaluated: frozenset({Stage.ENDING}),
    CheckpointKnown: _UNFINISHED,
    MilestonePassed: frozenset({Stage.TRAINING}),
    BoundaryTextsScored: frozenset({Stage.WARMUP, Stage.PARKED}),
    Ending: _UNFINISHED,
    JobEnded: _UNFINISHED | {Stage.ENDING},
}


def reduced(record: JobRecord, change: RecordChange) -> JobRecord:
    """The record after the change. Raises ValueError for one that is not allowed in this stage."""
    if record.stage not in _FROM[type(change)]:
        raise ValueError(f"change {change} is not allowed in stage {record.stage}")
    match change:
        case WarmupBegan():
            return replace(record, stage=Stage.WARMUP)
        case TrainingBegan():
            return replace(record, stage=Stage.TRAINING, promoted=True)
        case Parked():
            return replace(record, stage=Stage.PARKED)
        case Promoted():
            return replace(record, stage=Stage.TRAINING, promoted=True, rungs_decided=len(record.progress.rung_losses))
        case CheckpointKnown():
            return replace(record, checkpoint=change.ref)
        case MilestonePassed():
            return replace(record, milestone=change.milestone)
        case BoundaryTextsScored():
            return replace(record, milestone=change.step, text_scores=change.scores)
        case Ending():
            return replace(record, stage=Stage.ENDING)
        case JobEnded():
            return replace(record, stage=Stage.ENDED)
    return replace(record, progress=_advanced(record.progress, change))


def _advanced(progress: JobProgress, change: ProgressChange) -> JobProgress:
    match change:
        case StepsTaken():
            ema = progress.ema
            for loss in filter(math.isfinite, change.losses):
                ema = smooth(ema, loss, change.ema_alpha)
            return replace(progress, step=progress.step + len(change.losses), ema=ema)
        case Evaluated():
            found = [Best(progress.step, change.val_loss)] if math.isfinite(change.val_loss) else []
            lowest = sorted([*progress.lowest, *found], key=lambda one: one.val_loss)  # stable: the first of equal ones
            return replace(progress, history=change.history, lowest=tuple(lowest[: change.most]))
        case BestEvaluated():
            return replace(progress, lowest=(Best(change.step, change.val_loss),) if math.isfinite(change.val_loss) else ())
        case RungReached():
            losses = progress.rung_losses
            after = (*losses[: change.rung], change.val_loss, *losses[change.rung + 1 :])
            return replace(
                progress, rung_losses=after, boundary_scores=change.scores if change.rung == 0 else progress.boundary_scores
            )


def keeps_adapter(verdict: Verdict | None, best: Best | None) -> bool:
    """Whether a job that ends keeps its best adapter: every job that has one, except those ranked out (ALTO 5.2)."""
    ranked_out = (
        verdict is not None and verdict.reason is ExitReason.UNDERPERFORMING and not verdict.keeps_adapter_though_ranked_out
    )
    return best is not None and not ranked_out
