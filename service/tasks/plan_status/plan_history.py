"""A task's plan history: what the planner said about it, and when. Each writer adds its own change; the owner reads it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from service.database.engine import new_id
from service.http.problems import FieldError, unread_columns
from service.scheduler.models import PlanChange
from service.tasks.models import Task

PlanChangeKind = Literal["waits", "placed", "left"]


class PlanChangeResource(BaseModel):
    """One change of what is planned for a task."""

    object: Literal["plan_change"] = "plan_change"
    id: str
    kind: PlanChangeKind = Field(description="waits: for another reason or time than before; placed: on a node; left: its node")
    said: dict[str, Any] = Field(description="waits: as the task's `waiting`; placed: where and until when; left: why")
    created_at: datetime
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")

    @classmethod
    def of(cls, change: PlanChange) -> "PlanChangeResource":
        shown = cls.model_validate(change, from_attributes=True)
        return shown.model_copy(update={"problems": unread_columns(change, "change of its plan", "said")})


def note(session: Session, task: Task, kind: PlanChangeKind, said: Mapping[str, Any]) -> None:
    """Append to the task's history."""
    session.add(PlanChange(id=new_id("change"), tenant_id=task.tenant_id, task_id=task.id, kind=kind, said=dict(said)))
