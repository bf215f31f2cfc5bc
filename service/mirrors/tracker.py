"""What a visit needs of a tracking server, whichever it is, and what it says of a task. Knows no server's API and no tables.

All times are milliseconds since 1970.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from contract.states import JobStatus, TaskStatus

MOST_POINTS = 900  # of a batch; MLflow takes 1,000 metrics, params and tags in a call
_SHOWN = 300  # characters of a failure


class CallFailed(Exception):
    """The server did not do it; the message is for the tenant. `final`: nor would it if it were asked again. `code`: the
    server's own error code, if it gave one. `wait`: how long it asks to be left alone."""

    def __init__(self, message: str, final: bool = False, code: str | None = None, wait: timedelta | None = None) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message)[:_SHOWN])
        self.final, self.code, self.wait = final, code, wait


@dataclass(frozen=True)
class Metric:
    """value: NaN where the loss was not finite. at: when it was first sent."""

    key: str
    step: int
    value: float
    at: int


@dataclass(frozen=True)
class PointBatch:
    """Points of one job's run to send, by step; those of one step are in one batch where it has room for them. A batch that
    may have arrived comes again with the same times. first: nothing of the job was sent before."""

    metrics: Sequence[Metric]
    first: bool


@dataclass(frozen=True)
class MirroredJob:
    """A job that has started. ended: None while it goes on. limit: the last step whose points count. run_id: of its run, None
    before there is one. position: what the tracker returned after the last batch that was answered."""

    id: str
    index: int
    config: Mapping[str, Any]
    status: JobStatus
    exit_reason: str | None
    best_step: int | None
    best_val_loss: float | None
    started: int
    ended: int | None
    limit: int
    run_id: str | None
    in_doubt: bool
    empty: bool  # no point of it is there
    position: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str:
        assert self.run_id is not None  # a visit starts the run before all else
        return self.run_id


@dataclass(frozen=True)
class MirroredTask:
    """version: the task's, as of which all this is. ended: None while it goes on. started: of its first job, None before.
    job_count: of all jobs; jobs: those that have more to send, in index order. place, run_id: as the tracker named them."""

    id: str
    name: str | None
    version: int
    status: TaskStatus
    base_model: str
    winner_job_id: str | None
    experiment: str
    tags: Mapping[str, str]
    options: Mapping[str, Any]
    place: str | None
    run_id: str | None
    started: int | None
    ended: int | None
    job_count: int
    jobs: Sequence[MirroredJob]

    @property
    def at(self) -> str:
        assert self.place is not None  # a visit asks for it before all else
        return self.place

    @property
    def run(self) -> str:
        assert self.run_id is not None  # a visit starts it before those of the jobs
        return self.run_id


class Tracker(ABC):
    """One tracking server. Every method may be called again after its answer got lost, and then makes nothing twice. All raise
    CallFailed."""

    beat: ClassVar[timedelta | None] = None  # a run that goes on must be heard of so often

    @property
    @abstractmethod
    def slowest(self) -> float:
        """Seconds that the slowest call took."""

    @abstractmethod
    def place(self, task: MirroredTask) -> str:
        """Under what the task's runs lie: an experiment's id, an entity."""

    def unrecorded(self, task: MirroredTask) -> Mapping[str, str]:
        """Ids of the task's runs that are there, by job, "" for its own, where creation would make them again."""
        return {}

    @abstractmethod
    def start_task(self, task: MirroredTask) -> str:
        """The id of the task's own run, or of what groups those of its jobs."""

    @abstractmethod
    def start_job(self, task: MirroredTask, job: MirroredJob) -> str:
        """The id of the job's run."""

    def last_steps(self, job: MirroredJob) -> Mapping[str, int] | None:
        """The last step of each series that is there; None where a batch may come twice."""
        return None

    @abstractmethod
    def log(self, task: MirroredTask, job: MirroredJob, batch: PointBatch) -> Mapping[str, Any]:
        """Add the points, at `job.position`; returns the position after them."""

    def keep_alive(self, task: MirroredTask, job: MirroredJob) -> None:
        """Say that the job goes on, though it has no points to send. A server without a `beat` wants no such word."""
        return

    @abstractmethod
    def end_job(self, task: MirroredTask, job: MirroredJob) -> None: ...

    @abstractmethod
    def end_task(self, task: MirroredTask) -> None: ...
