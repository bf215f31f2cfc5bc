"""Messages that a placement reports: numbered reports of events in the order they happened.

A non-finite loss is sent as null.
"""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from contract.compatibility.lenient_documents import SentConfig
from contract.compatibility.protocol import PROTOCOL
from contract.evaluation.text_evaluation import MOST_PROMPTS
from contract.messages.adapter_manifest import AdapterManifest
from contract.messages.placement_messages import CheckpointRef
from contract.messages.span_messages import MOST_SPANS, PhaseSpan
from contract.row_scores import RowScores
from contract.states import ExitReason, JobStatus
from contract.strict import Message


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite_or_none_each(values: list[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if all(map(math.isfinite, known)):
        return values  # the common case: a call for each value took as long as everything else about a report
    return [None if value is None or not math.isfinite(value) else value for value in values]


MOST_TEXT_BYTES = 8 * 2**20  # of one evaluation's texts, as JSON; a report has at most one evaluation with texts

Loss = Annotated[float | None, BeforeValidator(_finite_or_none)]  # None: the loss was not finite


Losses = Annotated[list[float | None], AfterValidator(_finite_or_none_each)]


class Attached(Message):
    """The executor took the placement and knows its rows. `total_steps` by job index."""

    kind: Literal["attached"] = "attached"
    train_rows: Annotated[int, Field(ge=1)]
    validation_rows: int
    truncated_rows: int  # longer than max_seq_len, truncated
    skipped_rows: int  # skipped: nothing left to learn after truncation
    trend_rows: int | None = None  # of the validation rows, the first, which every evaluation reads; None: all
    overlap_rows: int | None = None  # of the validation rows, those that are also trained on; None: of a worker of before
    total_steps: dict[int, int]
    warmup_steps: dict[int, int]


class ActivationsChosen(Message):
    """How the task's training passes hold their activations from now on: all kept, or computed again in backward, and why."""

    kind: Literal["activations_chosen"] = "activations_chosen"
    recompute: bool
    reason: Annotated[str, Field(max_length=2000)]


class BaseEvaluated(Message):
    kind: Literal["base_evaluated"] = "base_evaluated"
    val_loss: Loss
    scores: RowScores | None = None


_Score = Annotated[float, Field(ge=0, le=1)]


def _storable(text: str) -> str:
    """Models generate NUL, which the service cannot store."""
    return text.replace("\0", "\ufffd")


_Shown = Annotated[str, AfterValidator(_storable)]


class TextSample(Message):
    """One generated text. prompt: its end, where it is long. NUL characters are replaced."""

    prompt: _Shown
    reference: _Shown
    text: _Shown
    finish_reason: Literal["stop", "length"]
    scores: dict[str, float]


class GeneratedText(Message):
    """One text in full, for endpoint graders. prompt: as text. NUL characters are replaced."""

    prompt: _Shown
    reference: _Shown
    text: _Shown
    finish_reason: Literal["stop", "length"]


def text_bytes(texts: list[GeneratedText]) -> int:
    """What they take in a report."""
    return sum(len(one.model_dump_json().encode()) for one in texts)


class TextsEvaluated(Message):
    """Texts were generated and scored: of a job's best adapter, before AdapterKept, or of the base (job None), or at a
    milestone, of a job that trains, with its weights after `step`, before the event that ends it; where a text metric decides
    the cut after warmup (TaskSpec.cut_metric), the boundary is a milestone, too. scores: means over `prompts` prompts by the
    metric's name; prompt_scores: of each prompt, in their order; at the boundary of that metric alone, at milestones left out.
    Both are empty where `error` says why there are none. notes: sentences about what was left out of the scores, or counts as
    0. texts: all of them, where the task has endpoint graders, which the service calls; at most MOST_TEXT_BYTES."""

    kind: Literal["texts_evaluated"] = "texts_evaluated"
    job: int | None
    step: int | None = None  # after which the adapter was saved
    milestone: Annotated[int, Field(ge=1)] | None = None  # the step at which it was due; a job that resumed past it is later
    prompts: Annotated[int, Field(ge=0)]
    scores: dict[str, _Score]
    prompt_scores: dict[str, Annotated[list[_Score], Field(max_length=MOST_PROMPTS)]] = Field(default={})
    samples: Annotated[list[TextSample], Field(max_length=16)] = Field(default=[])
    error: Annotated[str, Field(max_length=2000)] | None = None
    notes: Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=100)] = Field(default=[])
    texts: Annotated[list[GeneratedText], Field(max_length=MOST_PROMPTS)] = Field(default=[])
    tokens: int = 0
    seconds: float = 0.0


class JobProposed(Message):
    """The configuration of a job in a later round of a tpe search was chosen, before its first step."""

    kind: Literal["job_proposed"] = "job_proposed"
    job: int
    config: SentConfig
    total_steps: Annotated[int, Field(ge=1)]
    warmup_steps: Annotated[int, Field(ge=1)]


class JobMoved(Message):
    """A job entered warmup, was parked at its boundary, or was promoted past it."""

    kind: Literal["job_moved"] = "job_moved"
    job: int
    status: Literal[JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING]
    step: int
    warmup_val_loss: Loss = None  # with status parked, and with training if it was never parked
    boundary_scores: RowScores | None = None  # behind that loss, on each validation row: the cut compares jobs by them


# Besides the losses: accuracy is the share of trained tokens that are their logits' argmax (workers of before send none); under
# dpo the share of pairs whose chosen answer has the higher reward, and margin the mean difference of the rewards.
Series = Literal["train_loss", "val_loss", "train_accuracy", "train_margin", "val_accuracy", "val_margin"]


class Points(Message):
    """Points of one series of one job; `steps` ascend strictly, and no step of a series is reported twice between two
    rewinds."""

    kind: Literal["points"] = "points"
    job: int
    series: Series
    steps: Annotated[list[int], Field(min_length=1, max_length=256)]
    values: Annotated[Losses, Field(min_length=1, max_length=256)]


class Throughput(Message):
    """Work done since the last record. `forwards` counts backbone training forwards, `micro_batches` what was packed, `rows`
    the adapter rows that were trained, summed over the steps.

    `seconds` are those of every step that the placement had a part in; `share_seconds` are its part of them, by tokens. They
    differ where tasks share steps. A worker that does not know shares leaves them out.

    Where a placement's devices step at once, `device_steps` counts the steps of each, and `device_seconds` are what each took
    until its own was done: so they say how fast one device is. Neither counts an executor's first step, nor of a stall more
    than such a step may take. A worker that leaves them out trains on one device.
    """

    kind: Literal["throughput"] = "throughput"
    steps: int
    tokens: int
    seconds: float
    micro_batches: int
    forwards: int
    rows: int = 0
    evaluation_tokens: int = 0
    evaluation_seconds: float = 0.0
    share_seconds: float | None = None
    device_steps: int | None = None
    device_seconds: float | None = None
    slowdown: float | None = None  # of late, as a multiple of the time alone; only where tasks share the executor
    beside: tuple[str, ...] = ()  # the placements that the slowdown was measured beside; empty: the worker does not tell

    @property
    def own_seconds(self) -> float:
        """Device seconds spent for this placement alone, per device."""
        return (self.seconds if self.share_seconds is None else self.share_seconds) + self.evaluation_seconds


class Checkpointed(Message):
    """Checkpoints, uploaded, of all unfinished jobs that have trained since their last one, taken at one moment."""

    kind: Literal["checkpointed"] = "checkpointed"
    jobs: dict[int, CheckpointRef]


class AdapterKept(Message):
    """The job's best adapter, uploaded and ready to commit; sent before the event that ends the job. scores: on each validation
    row, by which the winner is chosen."""

    kind: Literal["adapter_kept"] = "adapter_kept"
    job: int
    manifest: AdapterManifest
    scores: RowScores | None = None


# under asha, the losses that the job was ranked by at its rungs (workers of before send none)
RungLosses = Annotated[list[float], Field(max_length=64)]


class JobCompleted(Message):
    kind: Literal["job_completed"] = "job_completed"
    job: int
    step: int
    best_step: int | None
    best_val_loss: Loss
    rung_losses: RungLosses = Field(default=[])


class JobExited(Message):
    """Early exit ended the job; `evidence` is what decided it (the windows of losses, slopes, ranks, thresholds)."""

    kind: Literal["job_exited"] = "job_exited"
    job: int
    step: int
    reason: ExitReason
    evidence: dict[str, float | int | str | list[Loss] | None]
    best_step: int | None
    best_val_loss: Loss
    rung_losses: RungLosses = Field(default=[])


class JobFailed(Message):
    kind: Literal["job_failed"] = "job_failed"
    job: int
    step: int
    error: Annotated[str, Field(max_length=2000)]


class PlacementFailed(Message):
    """The placement cannot go on for a reason that another try would meet again (bad dataset, unknown architecture)."""

    kind: Literal["placement_failed"] = "placement_failed"
    error: Annotated[str, Field(max_length=2000)]


class Detached(Message):
    """The executor let the task go, after its last checkpoint was committed."""

    kind: Literal["detached"] = "detached"


ReportEvent = Annotated[
    Attached
    | ActivationsChosen
    | BaseEvaluated
    | TextsEvaluated
    | JobProposed
    | JobMoved
    | Points
    | Throughput
    | Checkpointed
    | AdapterKept
    | JobCompleted
    | JobExited
    | JobFailed
    | PlacementFailed
    | Detached,
    Field(discriminator="kind"),
]


class Report(Message):
    """Events in the order they happened. `seq` counts a placement's reports from 1 without gaps."""

    protocol: int = PROTOCOL
    fence: int
    seq: Annotated[int, Field(ge=1)]
    events: Annotated[list[ReportEvent], Field(min_length=1, max_length=512)]
    # phases that ended since the last report, where the placement is traced; a service from before them ignores them
    spans: Annotated[list[PhaseSpan], Field(max_length=MOST_SPANS)] = Field(default=[])


class ReportAck(Message):
    """`seq` is the highest report applied; a repeated report changes nothing and gets the same answer."""

    seq: int
