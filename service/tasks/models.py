"""Tables of tasks: tasks, their jobs, loss points and event logs.

`fence` rises when a task is placed, leaves its node before its end, is paused in the queue, or is cancelled; a write that
carries an older fence changes nothing.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    literal_column,
    or_,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column, relationship

from contract.messages.placement_messages import CheckpointRef
from contract.messages.report_messages import TextSample
from contract.row_scores import MAX_SCORED_ROWS, RowScores
from contract.states import TASK_TERMINAL, JobStatus, TaskStatus
from contract.task_spec import Precision
from service.database.checked_json import CheckedJson, Moment, ParsedJson, UnreadDict, UnreadList, UnreadValue
from service.database.engine import At, Base, Big, Id, Json, Now


class _Waiting(BaseModel):
    """Why a task waits (plan_status/unplanned_reasons.py). What has a default not every version writes."""

    code: str
    sentence: str
    place: int | None
    node: str | None
    expected_start: Moment | None
    expected_end: Moment | None
    late_seconds: float | None
    expected_start_interval: list[Moment] | None = None
    expected_end_interval: list[Moment] | None = None
    gpus: int | None = None


_DOCUMENT, _LABELS, _WAITING = TypeAdapter(dict[str, Any]), TypeAdapter(dict[str, str]), TypeAdapter(_Waiting)
_SCORES, _NOTES, _SAMPLES = TypeAdapter(dict[str, float]), TypeAdapter(list[str]), TypeAdapter(list[TextSample])
PromptScores = dict[str, Annotated[list[FiniteFloat], Field(max_length=MAX_SCORED_ROWS)]]  # by metric, of each prompt
_TEXTS = "scores of texts ({}.prompt_scores)"


def _parsed(of: Any, name: str, deferred: bool = True, null: bool = True) -> MappedColumn[Any]:
    return mapped_column(ParsedJson(TypeAdapter(of), name, none_as_null=null), deferred=deferred)


class Task(Base):
    __tablename__ = "tasks"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str | None] = mapped_column(String(128))
    # as the tenant sent it, and defaults at creation of what it left out; service.tasks.stored_specs reads both
    spec: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))
    spec_defaults: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict), server_default=text("'{}'"))
    made_by: Mapped[str | None] = mapped_column(String(32))  # version of the service that created it
    status: Mapped[TaskStatus] = mapped_column(String(16))
    fence: Mapped[Big] = mapped_column(default=0)
    version: Mapped[Big] = mapped_column(default=1)  # rises with every change that a poller can see; its ETag
    last_event: Mapped[Big] = mapped_column(default=0)  # the number of its newest TaskEvent
    told_status: Mapped[str] = mapped_column(String(16), default="")  # the last status that its event log recorded
    error: Mapped[str | None] = mapped_column(Text)
    base_model: Mapped[str] = mapped_column(String(128))
    base_revision: Mapped[str] = mapped_column(String(64))  # pinned at creation
    train_file_id: Mapped[str] = mapped_column(ForeignKey("files.id"))
    validation_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"))
    prompts_file_id: Mapped[str | None] = mapped_column(ForeignKey("files.id"))  # of its evaluation
    gpus: Mapped[int]
    priority: Mapped[int]
    labels: Mapped[dict[str, str]] = mapped_column(CheckedJson(_LABELS, UnreadDict), default=dict)
    batch_id: Mapped[str | None] = mapped_column(String(40))  # of the batch that it was posted in
    winner_job_id: Mapped[str | None] = mapped_column(String(40))
    base_val_loss: Mapped[float | None] = mapped_column(Double)
    base_scores: Mapped[RowScores | UnreadValue | None] = _parsed(RowScores, "scores of the base (tasks.base_scores)")
    # a service.tasks.selection.Selection, which reads it
    selection: Mapped[dict[str, Any] | None] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict, none_as_null=True))
    trend_rows: Mapped[int | None]  # of the validation rows, those that every evaluation reads
    train_rows: Mapped[int | None]
    validation_rows: Mapped[int | None]
    truncated_rows: Mapped[int | None]
    skipped_rows: Mapped[int | None]
    overlap_rows: Mapped[int | None]  # of the validation rows, those that are also trained on
    desired_status: Mapped[str | None] = mapped_column(String(16))  # its status after its placement has left
    requeue_reason: Mapped[str | None] = mapped_column(String(16))  # why it was last taken off a node,
    requeue_detail: Mapped[str | None] = mapped_column(Text)  # the same in words
    lost_executors: Mapped[int] = mapped_column("losses", default=0)  # in a row, without a new checkpoint or a job's end
    faults: Mapped[Json] = mapped_column(default=dict, server_default=text("'{}'"))  # by node: node_faults.Fault
    retry_at: Mapped[At | None]  # when the first of the nodes that lost it may take it again
    # training rows that still count as of the last rewind, and those that rewinds discarded; only rewinds write them
    kept_rows: Mapped[Big] = mapped_column(default=0, server_default="0")
    rewound_rows: Mapped[Big] = mapped_column(default=0, server_default="0")
    request_id: Mapped[str | None] = mapped_column(String(64))  # of the request that created it; logged with all work on it
    traceparent: Mapped[str | None] = mapped_column(String(64))  # of that request's span (W3C trace context); null: not traced
    waiting: Mapped[dict[str, Any] | None] = mapped_column(CheckedJson(_WAITING, UnreadDict, none_as_null=True))
    created_at: Mapped[Now]
    queued_at: Mapped[At | None]
    started_at: Mapped[At | None]  # of the first placement
    ended_at: Mapped[At | None]
    archived_at: Mapped[At | None]  # hidden from lists since
    deleted_at: Mapped[At | None]  # invisible to its tenant since; its billed usage stays
    emptied_at: Mapped[At | None]  # when the garbage collector had removed all that it held

    jobs: Mapped[list["Job"]] = relationship(order_by="Job.index", back_populates="task")

    __table_args__ = (
        # of lists: what they are filtered by lies in the index, so rows that do not match are not read
        Index(
            *("ix_tasks_listed", "tenant_id", text("created_at DESC"), text("id DESC")),
            postgresql_include=["status", "base_model", "name", "archived_at"],
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index(
            *("ix_tasks_labels", "labels"),
            postgresql_using="gin",
            postgresql_ops={"labels": "jsonb_path_ops"},
            postgresql_where=text("labels <> '{}'::jsonb"),
        ),
        Index("ix_tasks_train_file_id", "train_file_id"),
        *(
            Index(f"ix_tasks_{name}", name, postgresql_where=text(f"{name} IS NOT NULL"))
            for name in ("validation_file_id", "prompts_file_id")
        ),
        # the files that a tenant's tasks name, without reading the tasks
        Index("ix_tasks_tenant_train_file_id", "tenant_id", "train_file_id", postgresql_where=text("deleted_at IS NULL")),
        *(
            Index(
                *(f"ix_tasks_tenant_{name}", "tenant_id", name),
                postgresql_where=text(f"deleted_at IS NULL AND {name} IS NOT NULL"),
            )
            for name in ("validation_file_id", "prompts_file_id")
        ),
        Index("ix_tasks_open", "status", postgresql_where=text("status IN ('validating', 'queued', 'running', 'paused')")),
        Index("ix_tasks_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_tasks_deleted", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL AND emptied_at IS NULL")),
    )

    @property
    def precision(self) -> Precision:
        """How its base is stored. Reads this field alone, since every report asks; specs older than the field lack it."""
        said: Precision = self.spec.get("precision") or (self.spec_defaults or {}).get("precision", "bf16")
        return said


# literals, not parameters: only so does Postgres see that ix_tasks_open answers it
TASK_IS_OPEN = Task.status.in_([literal_column(f"'{status}'") for status in TaskStatus if status not in TASK_TERMINAL])


class Job(Base):
    __tablename__ = "jobs"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    index: Mapped[int]
    config: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))
    proposed: Mapped[bool] = mapped_column(server_default=true())  # false: `config` stands in until one is proposed (tpe)
    status: Mapped[JobStatus] = mapped_column(String(16), default=JobStatus.PENDING)
    step: Mapped[int] = mapped_column(default=0)  # the last reported one
    total_steps: Mapped[int | None]
    warmup_steps: Mapped[int | None]
    warmup_val_loss: Mapped[float | None] = mapped_column(Double)  # the mean of boundary_scores, kept until its task ends
    boundary_scores: Mapped[RowScores | UnreadValue | None] = _parsed(RowScores, "scores of a job (jobs.boundary_scores)")
    rung_losses: Mapped[list[float] | None] = mapped_column(ARRAY(Double))  # under asha, once it has ended
    warmup_score: Mapped[float | None] = mapped_column(Double)  # there, by the text metric that the cut goes by
    promoted: Mapped[bool] = mapped_column(default=False)
    exit_reason: Mapped[str | None] = mapped_column(String(16))
    exit_evidence: Mapped[dict[str, Any] | None] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict, none_as_null=True))
    error: Mapped[str | None] = mapped_column(Text)
    best_step: Mapped[int | None]
    best_val_loss: Mapped[float | None] = mapped_column(Double)
    checkpoint: Mapped[CheckpointRef | UnreadValue | None] = _parsed(CheckpointRef, "checkpoint (jobs.checkpoint)", False)
    started_at: Mapped[At | None]
    ended_at: Mapped[At | None]

    task: Mapped[Task] = relationship(back_populates="jobs")

    __table_args__ = (
        UniqueConstraint("task_id", "index"),
        Index("ix_jobs_open", "status", postgresql_where=text("ended_at IS NULL")),
        Index("ix_jobs_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_jobs_scored", "task_id", postgresql_where=text("boundary_scores IS NOT NULL")),
    )


class PointChunk(Base):
    """Up to 256 points of one series. NaN stands for a loss that was not finite.

    A rewind splits the chunk that spans its step and hides the part beyond it. No query shows or counts hidden chunks.
    """

    __tablename__ = "point_chunks"

    id: Mapped[Big] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    series: Mapped[str] = mapped_column(String(16))
    first_step: Mapped[int]
    last_step: Mapped[int]
    steps: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    values: Mapped[list[float]] = mapped_column(ARRAY(Double))
    hidden_by: Mapped[int | None] = mapped_column(BigInteger)  # the fence of the rewind that hid it

    __table_args__ = (
        Index(
            "uq_point_chunks_visible", "job_id", "series", "first_step", unique=True, postgresql_where=text("hidden_by IS NULL")
        ),
        Index("ix_point_chunks_hidden", "job_id", postgresql_where=text("hidden_by IS NOT NULL")),
        CheckConstraint("cardinality(steps) = cardinality(values)", name="paired"),
    )


class CurveSummary(Base):
    """A whole series of an ended job, in buckets of `width` steps: bucket n begins at step n * width.

    `means`, `mins` and `maxs` are over the bucket's finite points; a bucket without any has count 0.
    """

    __tablename__ = "curve_summaries"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    series: Mapped[str] = mapped_column(String(16), primary_key=True)
    width: Mapped[int]
    buckets: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    counts: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    means: Mapped[list[float]] = mapped_column(ARRAY(Double))
    mins: Mapped[list[float]] = mapped_column(ARRAY(Double))
    maxs: Mapped[list[float]] = mapped_column(ARRAY(Double))


class ScoredTexts:
    """Columns of texts that were generated and scored."""

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    prompts: Mapped[int]
    scores: Mapped[dict[str, float]] = mapped_column(CheckedJson(_SCORES, UnreadDict))  # by metric, means over the prompts
    samples: Mapped[list[dict[str, Any]]] = mapped_column(CheckedJson(_SAMPLES, UnreadList))
    error: Mapped[str | None] = mapped_column(Text)
    notes: Mapped[list[str]] = mapped_column(CheckedJson(_NOTES, UnreadList), server_default="[]")
    tokens: Mapped[Big]
    seconds: Mapped[float] = mapped_column(Double)
    created_at: Mapped[Now]


class TextEvaluation(ScoredTexts, Base):
    """How the texts that a job's kept adapter generated were scored; without a job, those of the base alone. One of each."""

    __tablename__ = "text_evaluations"

    id: Mapped[Id]
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int | None]
    prompt_scores: Mapped[PromptScores | UnreadValue] = _parsed(PromptScores, _TEXTS.format("text_evaluations"), null=False)


class MilestoneEvaluation(ScoredTexts, Base):
    """How the texts were scored that a job generated in the midst of its training, with its weights after `step`: at the step
    `milestone`, or, where it resumed past that, after its next one. Warmup's end is one where a text metric ranks jobs."""

    __tablename__ = "milestone_evaluations"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    milestone: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step: Mapped[int]
    prompt_scores: Mapped[PromptScores | UnreadValue | None] = _parsed(PromptScores, _TEXTS.format("milestone_evaluations"))


class TaskEvent(Base):
    """One event of a task, numbered from 1 without gaps under the task's row lock."""

    __tablename__ = "task_events"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    number: Mapped[Big] = mapped_column(primary_key=True, autoincrement=False)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(16))
    data: Mapped[dict[str, Any]] = mapped_column(CheckedJson(_DOCUMENT, UnreadDict))
    created_at: Mapped[Now]

    __mapper_args__ = {"eager_defaults": False}  # noqa: RUF012  # inserts do not read back


def reads_file(file_id: ColumnElement[str] | Mapped[str] | str) -> ColumnElement[bool]:
    """Whether a task names the file: to train on, to validate on, or for the prompts of its evaluation."""
    return or_(Task.train_file_id == file_id, Task.validation_file_id == file_id, Task.prompts_file_id == file_id)
