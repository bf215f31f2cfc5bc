"""Tables of tracking servers, and of what of each task they were sent."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter
from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlalchemy.orm import Mapped, MappedColumn, mapped_column

from service.database.checked_json import ParsedJson, UnreadValue
from service.database.engine import At, Base, Big, Id, Now


def _summary(text: str) -> str:
    said = json.loads(text)
    if not isinstance(said, dict) or not isinstance(said.get("best_val_loss", 0.0), int | float):
        raise ValueError("is no summary of a run")
    return text


Steps = dict[str, Annotated[int, Field(ge=-1, lt=2**31)]]  # by series


class Options(BaseModel):
    """Of W&B: the runs' name and tags."""

    name: str | None = None
    tags: list[str] = Field(default=[])


class InDoubt(BaseModel):
    """A batch of which nobody knows whether it arrived. at: the time of its points there. through: its last steps."""

    at: Annotated[int, Field(ge=0, le=2**53)]
    through: Steps


class Position(BaseModel):
    """The tracker's own (`lines`, `step`, `summary`), and when its server heard of the run last (`heard`, in ms since 1970)."""

    lines: int = 0
    step: int = -1
    summary: Annotated[str, AfterValidator(_summary)] = "{}"
    heard: int = 0


def _stored(of: Any, name: str, **more: Any) -> MappedColumn[Any]:
    checked = ParsedJson(TypeAdapter(of), name, none_as_null=more.pop("nullable", False), keeps_newer=True)
    return mapped_column(checked, **more)


class TrackingServer(Base):
    """A tracking server, which the tenant's specs name."""

    __tablename__ = "tracking_servers"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    type: Mapped[str] = mapped_column(String(16), default="mlflow", server_default="mlflow")  # a TrackerType
    name: Mapped[str] = mapped_column(String(64))
    url: Mapped[str] = mapped_column(Text)
    credentials: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted JSON
    slow: Mapped[bool] = mapped_column(default=False, server_default="false")  # its last visit failed or took long
    created_at: Mapped[Now]

    __table_args__ = (UniqueConstraint("tenant_id", "name"),)


class TaskMirror(Base):
    """A task on a tracking server. `claim` rises whenever a courier takes the row or somebody stops it: what a courier records
    under an older claim changes nothing."""

    __tablename__ = "task_mirrors"

    id: Mapped[Id]
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    server_id: Mapped[str | None] = mapped_column(ForeignKey("tracking_servers.id", ondelete="SET NULL"), index=True)
    type: Mapped[str] = mapped_column(String(16), default="mlflow", server_default="mlflow")  # a TrackerType
    server: Mapped[str] = mapped_column(String(64))  # its name
    experiment: Mapped[str] = mapped_column(Text)  # its name; of W&B, the project's
    entity: Mapped[str | None] = mapped_column(Text)  # of W&B: as asked for, or as the server named it
    tags: Mapped[dict[str, str] | UnreadValue] = _stored(dict[str, str], "tags (task_mirrors.tags)")
    options: Mapped[Options | UnreadValue] = _stored(
        Options, "options (task_mirrors.options)", default=Options, server_default=sql("'{}'")
    )
    state: Mapped[str] = mapped_column(String(16), default="active", server_default="active")  # task_mirrors.State
    experiment_id: Mapped[str | None] = mapped_column(String(64))  # there,
    run_id: Mapped[str | None] = mapped_column(String(64))  # of the task; of W&B, the group of its runs
    points: Mapped[Big] = mapped_column(default=0, server_default="0")  # that are there
    error: Mapped[str | None] = mapped_column(Text)  # of the last visit
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")  # visits that failed in a row,
    failing_since: Mapped[At | None]  # the first of them
    unrecorded: Mapped[int] = mapped_column(default=0, server_default="0")  # visits in a row without an outcome
    seen_version: Mapped[Big] = mapped_column(default=0, server_default="0")  # of the task, when all of it was there
    claim: Mapped[Big] = mapped_column(default=0, server_default="0")
    next_at: Mapped[Now]  # next visit
    held_until: Mapped[At | None]  # during a visit, the end of its visibility timeout, as `next_at` is then
    created_at: Mapped[Now]

    __table_args__ = (
        Index("ix_task_mirrors_due", "next_at", postgresql_where=sql("state = 'active'")),
        Index("ix_task_mirrors_held", "tenant_id", postgresql_where=sql("held_until IS NOT NULL")),
    )


class MirroredRun(Base):
    """A job's run. `in_doubt`: the batch that was sent last, while nobody knows whether it arrived. `position`: after what was
    answered."""

    __tablename__ = "mirrored_runs"

    mirror_id: Mapped[str] = mapped_column(ForeignKey("task_mirrors.id", ondelete="CASCADE"), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    run_id: Mapped[str] = mapped_column(String(64))
    through: Mapped[int] = mapped_column(default=-1, server_default="-1")  # all points up to this step are there
    # the last steps that are there
    sent: Mapped[Steps | UnreadValue] = _stored(
        Steps, "steps that were sent (mirrored_runs.sent)", default=dict, server_default=sql("'{}'")
    )
    in_doubt: Mapped[InDoubt | UnreadValue | None] = _stored(InDoubt, "batch in doubt (mirrored_runs.in_doubt)", nullable=True)
    position: Mapped[Position | UnreadValue] = _stored(
        Position, "position (mirrored_runs.position)", default=Position, server_default=sql("'{}'")
    )
    ended: Mapped[bool] = mapped_column(default=False, server_default="false")  # its end is there, too
