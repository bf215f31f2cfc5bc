"""A task's mirrors: checked when it is posted, stored with it, shown, and forgotten with it. Calls no server."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, Self, cast

from pydantic import BaseModel, Field
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from contract.task_spec import TaskSpec
from service.database.engine import new_id
from service.http.problems import FieldError
from service.mirrors.models import TaskMirror, TrackingServer
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

State = Literal["active", "finished", "failed", "stopped"]


class TaskMirrorResource(BaseModel):
    object: Literal["task_mirror"] = "task_mirror"
    type: Literal["mlflow"] = "mlflow"
    server: str = Field(description="The tracking server's name")
    experiment: str
    state: State = Field(
        description="active: kept up to date. finished: all of the task is there. failed: given up; a change of the tracking "
        "server begins anew. stopped: the tracking server was deleted"
    )
    error: str | None = Field(description="Why the last visit failed, or why there will be none")
    next_at: datetime | None = Field(description="Of an active one whose last visit failed: when it is tried again")
    experiment_id: str | None = Field(description="There; null before the first job starts")
    run_id: str | None = Field(description="There, of the task; runs of jobs have it as their parent")
    points: int = Field(description="That are there, of all jobs")

    @classmethod
    def of(cls, mirror: TaskMirror) -> Self:
        return cls(
            server=mirror.server,
            experiment=mirror.experiment,
            state=cast(State, mirror.state),
            error=mirror.error,
            next_at=mirror.next_at if mirror.state == "active" and mirror.attempts else None,
            experiment_id=mirror.experiment_id,
            run_id=mirror.run_id,
            points=mirror.points,
        )


def mistakes(session: Session, principal: Principal, spec: TaskSpec) -> Iterator[FieldError]:
    """Integrations that name no tracking server of the caller's; the others' servers are locked against deletion."""
    if not spec.integrations:
        return
    there = _servers(session, principal, spec)
    for place, one in enumerate(spec.integrations):
        if one.server not in there:
            message = f"there is no tracking server {one.server!r} that this key could see; POST /v1/tracking-servers makes one"
            yield FieldError(field=f"integrations[{place}].server", code="tracking_server_unknown", message=message)


def store(session: Session, principal: Principal, task_id: str, spec: TaskSpec) -> None:
    """Keep the mirrors of a new task, whose spec `mistakes` has found right in this transaction."""
    there = _servers(session, principal, spec) if spec.integrations else {}
    for one in spec.integrations:
        session.add(
            TaskMirror(
                id=new_id("mirror"),
                tenant_id=principal.tenant_id,
                task_id=task_id,
                server_id=there[one.server],
                server=one.server,
                experiment=one.experiment,
                tags=dict(one.tags),
            )
        )


def mirrors_of(session: Session, principal: Principal, task_id: str) -> list[TaskMirrorResource]:
    """The task's mirrors in the order of its spec; empty if it is not the caller's."""
    own = scoped(select(TaskMirror).where(TaskMirror.task_id == task_id), TaskMirror, principal)
    return [TaskMirrorResource.of(mirror) for mirror in session.scalars(own.order_by(TaskMirror.id))]


def forget(session: Session, task_id: str) -> None:
    """Stop mirroring the task. What is on the servers stays there."""
    session.execute(delete(TaskMirror).where(TaskMirror.task_id == task_id))


def _servers(session: Session, principal: Principal, spec: TaskSpec) -> dict[str, str]:
    """Ids of the tracking servers that the spec names, by name."""
    named = TrackingServer.name.in_({one.server for one in spec.integrations})
    own = scoped(select(TrackingServer).where(named), TrackingServer, principal).order_by(TrackingServer.id)
    return {server.name: server.id for server in session.scalars(own.with_for_update(read=True, key_share=True))}
