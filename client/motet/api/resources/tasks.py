"""Tasks, their jobs, curves and events, as the API answers them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from contract.compatibility.lenient_documents import ShownConfig
from contract.gpu_counts import device_word, devices
from contract.states import TASK_TERMINAL, ExitReason, JobStatus, RequeueReason, TaskStatus
from contract.strict import Message
from contract.wording.row_words import cut_sentence, overlap_sentence
from motet.api.resources.files import RowProblem


class Rows(Message):
    """How many rows train and validate; None until a worker has read the file. `trend`: how many of the validation rows, the
    first, evaluations read but for those at the cut and at a job's end. `overlap`: how many of them are also trained on."""

    train: int | None = None
    validation: int | None = None
    trend: int | None = None
    truncated: int | None = None
    skipped: int | None = None
    overlap: int | None = None

    @property
    def cut_sentence(self) -> str:
        """Empty where no row is known to have lost anything."""
        return cut_sentence(self.truncated, self.skipped)

    @property
    def overlap_sentence(self) -> str:
        """Empty where no validation row is known to be trained on."""
        return overlap_sentence(self.overlap, self.validation)


class Progress(Message):
    """Optimizer steps over all jobs. The total shrinks when early exit ends a job, not when the task is cancelled or fails."""

    steps_done: int = 0
    steps_total: int | None = None


class Samples(Message):
    """Training rows that passed through the model, and the share of `full` that early exit saved."""

    trained: int = 0
    full: int | None = None
    saved_fraction: float | None = None


class Interval(Message):
    """A mean over the validation rows with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


class WinShare(Message):
    """The part of the wins among wins and losses, with its 95 % confidence interval."""

    share: float
    low: float
    high: float


class PairwiseWins(Message):
    """On how many prompts the winner's text scored higher than the base's, the same, or lower, by one text metric."""

    metric: str
    wins: int
    ties: int
    losses: int
    win_share: WinShare | None = None  # None where all are ties
    sentence: str = ""


class Selection(Message):
    """How the winner was chosen, by how much it is better than the base, and what to try next. `beats_base` is False where
    nothing beat the base; the winner is then only the best there is."""

    metric: str = "val_loss"  # or val_accuracy, of a DPO search over beta, or the text metric that the task selects by
    rule: str = "lowest_loss"
    rows: int | None = None
    value: Interval | None = None
    gain: Interval | None = None
    compared: int | None = None  # jobs that it is the best of, those that were ranked out too; None: an earlier version chose
    beats_base: bool | None = None
    tied: list[int] = Field(default=[])
    unscored: list[int] = Field(default=[])  # kept an adapter that has no scores
    verdict: str = ""
    suggestions: list[str] = Field(default=[])
    pairwise: list[PairwiseWins] = Field(default=[])  # where the task's evaluation scored texts of the base and the winner


class Winner(Message):
    """The job that won; `Task.selection` says whether it beats the base."""

    job_id: str
    index: int
    config: ShownConfig
    adapter_id: str
    adapter_deleted_at: datetime | None = None
    val_loss: float
    step: int
    averaged_steps: tuple[int, ...] = ()  # the steps whose weights the adapter is the mean of; none: it has those of `step`


class Placement(Message):
    """Where a running task is placed."""

    node: str
    device_type: str | None = None
    gpus: int = 1
    since: datetime
    tokens_per_second: float | None = None
    steps: int = 0
    micro_batches: int = 0
    forwards: int = 0
    waits_for: str | None = None  # what it cannot go on without: room on the node's disk
    loading: str | None = None  # how far the fetching, then the loading, of its base is
    beside: int = 0  # other tasks on its GPUs
    slowdown: float | None = None  # how many times slower than alone it was of late beside them

    @property
    def where(self) -> str:
        """The node, the number of GPUs if it has several, and of tasks that share them."""
        place = self.node if self.gpus == 1 else f"{devices(self.gpus, device_word([self.device_type]))} of {self.node}"
        return place if not self.beside else f"{place}, beside {self.beside}"


class Waiting(Message):
    """Why a queued task waits, in one sentence; where and when the scheduler expects it to start and end."""

    code: str = ""
    sentence: str = ""
    place: int | None = None
    gpus: int | None = None  # of one node that it waits for: as many as it asks for, or as its base needs
    node: str | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None
    expected_start_interval: tuple[datetime, datetime] | None = None
    expected_end_interval: tuple[datetime, datetime] | None = None
    late_seconds: float | None = None


class Task(Message):
    """One search: a base, a dataset, many configurations."""

    id: str
    name: str | None = None
    status: TaskStatus
    error: str | None = None
    base_model: str
    base_revision: str
    spec: dict[str, Any]
    labels: dict[str, str] = Field(default={})
    priority: int = 1
    gpus: int = 1
    version: int
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    base_val_loss: float | None = None
    rows: Rows = Rows()
    jobs: dict[JobStatus, int] = Field(default={})
    progress: Progress = Progress()
    samples: Samples = Samples()
    winner: Winner | None = None
    selection: Selection | None = None
    waiting: Waiting | None = None
    desired_status: TaskStatus | None = None
    requeue_reason: RequeueReason | None = None
    requeue_detail: str | None = None
    placement: Placement | None = None
    # what of its stored row cannot be read; of the answer that makes it, what it is made with all the same
    problems: Sequence[RowProblem] | None = None

    @property
    def ended(self) -> bool:
        """Whether the status will never change again."""
        return self.status in TASK_TERMINAL

    @property
    def placed(self) -> Placement | None:
        """Where it is placed now; an ended task keeps the last `placement`, but holds nothing."""
        return None if self.ended else self.placement


class Exit(Message):
    """Early exit's verdict and the numbers behind it."""

    reason: ExitReason
    step: int
    evidence: dict[str, Any] = Field(default={})


class Job(Message):
    """One configuration of a task, one adapter."""

    id: str
    task_id: str
    index: int
    config: ShownConfig
    proposed: bool = True  # false: in a later round of a tpe search, and `config` stands in for what will be proposed
    status: JobStatus
    step: int = 0
    total_steps: int | None = None
    warmup_steps: int | None = None
    warmup_val_loss: float | None = None
    warmup_score: float | None = None
    promoted: bool = False
    exit: Exit | None = None
    error: str | None = None
    best_step: int | None = None
    best_val_loss: float | None = None
    averaged_steps: tuple[int, ...] = ()  # whose weights its adapter is the mean of; none: it has those of `best_step`
    adapter_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Curve(Message):
    """One loss series of one job; a value is None where the loss was not finite."""

    job_id: str
    index: int
    series: str
    steps: list[int]
    values: list[float | None]


class TextSample(Message):
    """One prompt, what the row answers, what was generated, and its scores."""

    prompt: str
    reference: str
    text: str
    finish_reason: str
    scores: dict[str, float] = Field(default={})


class TextEvaluation(Message):
    """Scores of generated texts, of a job's adapter or (without a job) of the base; empty where `error` says why.
    notes: what is left out of them, or counts as 0. pending: by metric, of how many texts an endpoint has still to answer the
    score. milestone: the step at which it was due; None at a job's end."""

    job_id: str | None = None
    index: int | None = None
    step: int | None = None
    milestone: int | None = None
    prompts: int
    scores: dict[str, float] = Field(default={})
    samples: list[TextSample] = Field(default=[])
    error: str | None = None
    notes: list[str] = Field(default=[])
    pending: dict[str, int] = Field(default={})


class PlanChange(Message):
    """One change in the task's plan: `kind` is waits, placed or left."""

    id: str
    kind: str
    said: dict[str, Any] = Field(default={})
    created_at: datetime


class Event(Message):
    """Something that happened to a task. `number` counts from 1 without gaps; `type` is status, activations, base, job,
    curves, adapter or rewind."""

    number: int
    type: str
    data: dict[str, Any] = Field(default={})
    created_at: datetime
