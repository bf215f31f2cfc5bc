"""A task's mirrors: checked when it is posted, stored with it, shown, and forgotten with it. Calls no server."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, Field
from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from contract.integrations import Integration, MlflowIntegration, TrackerType
from contract.task_spec import TaskSpec
from service.database.engine import new_id
from service.http.problems import FieldError
from service.mirrors.models import Options, TaskMirror, TrackingServer
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

State = Literal["active", "finished", "failed", "stopped"]


class TaskMirrorResource(BaseModel):
    object: Literal["task_mirror"] = "task_mirror"
    type: TrackerType
    server: str = Field(description="The tracking server's name")
    experiment: str = Field(description="Its name; of W&B, the project's")
    entity: str | None = Field(description="Of W&B; null before the first job starts, where the integration named none")
    state: State = Field(
        description="active: kept up to date. finished: all of the task is there. failed: given up; a change of the tracking "
        "server begins anew. stopped: the tracking server was deleted"
    )
    error: str | None = Field(description="Why the last visit failed, or why there will be none")
    next_at: datetime | None = Field(description="Of an active one whose last visit failed: when it is tried again")
    experiment_id: str | None = Field(description="There; null before the first job starts, and of W&B")
    run_id: str | None = Field(
        description="There, of the task; runs of jobs have it as their parent. Of W&B, the group of their runs, whose ids are "
        "the jobs'"
    )
    points: int = Field(description="That are there, of all jobs")

    @classmethod
    def of(cls, mirror: TaskMirror) -> Self:
        return cls(
            type=cast(TrackerType, mirror.type),
            server=mirror.server,
            experiment=mirror.experiment,
            entity=mirror.entity,
            state=cast(State, mirror.state),
            error=mirror.error,
            next_at=mirror.next_at if mirror.state == "active" and mirror.attempts else None,
            experiment_id=mirror.experiment_id,
            run_id=mirror.run_id,
            points=mirror.points,
        )


def mistakes(session: Session, principal: Principal, spec: TaskSpec) -> Iterator[FieldError]:
    """Integrations that name no tracking server of the caller's, one of another type, or one twice; the others' servers are
    locked against deletion."""
    if not spec.integrations:
        return
    there, seen = _servers(session, principal, spec), set[str]()
    for place, one in enumerate(spec.integrations):
        found = _of(there, one)
        field = f"integrations[{place}]" if one.server is None else f"integrations[{place}].server"
        if not found:
            yield FieldError(field=field, code="tracking_server_unknown", message=_missing(one))
        elif len(found) > 1:
            named = ", ".join(server.name for server in found)
            message = f"there are several tracking servers of type wandb: {named}; name one in 'server'"
            yield FieldError(field=field, code="tracking_server_ambiguous", message=message)
        elif found[0].type != one.type:
            message = f"the tracking server {one.server!r} is of type {found[0].type}, not {one.type}"
            yield FieldError(field=field, code="tracking_server_type", message=message)
        elif found[0].id in seen:
            message = f"is the tracking server {found[0].name!r} again; a task is mirrored to a server once"
            yield FieldError(field=field, code="tracking_server_twice", message=message)
        seen |= {server.id for server in found}


def _missing(one: Integration) -> str:
    if isinstance(one, MlflowIntegration):
        return f"there is no tracking server {one.server!r} that this key could see; POST /v1/tracking-servers makes one"
    name = "of type wandb" if one.server is None else repr(one.server)
    new = f'{{"type": "wandb", "name": "{one.server or "wandb"}", "credentials": {{"api_key": an API key of W&B}}}}'
    return f"there is no tracking server {name} that this key could see; POST /v1/tracking-servers makes one of {new}"


def store(session: Session, principal: Principal, task_id: str, spec: TaskSpec) -> None:
    """Keep the mirrors of a new task, whose spec `mistakes` has found right in this transaction."""
    there = _servers(session, principal, spec) if spec.integrations else []
    for one in spec.integrations:
        server = _of(there, one)[0]  # another of type wandb may have been added since
        session.add(
            TaskMirror(
                id=new_id("mirror"),
                tenant_id=principal.tenant_id,
                task_id=task_id,
                server_id=server.id,
                type=server.type,
                server=server.name,
                **_wanted(one),
            )
        )


def _wanted(one: Integration) -> dict[str, Any]:
    """A mirror's columns that say where on the server it is."""
    if isinstance(one, MlflowIntegration):
        return {"experiment": one.experiment, "tags": dict(one.tags)}
    run = one.wandb
    return {"experiment": run.project, "entity": run.entity, "tags": {}, "options": Options(name=run.name, tags=run.tags)}


def mirrors_of(session: Session, principal: Principal, task_id: str) -> list[TaskMirrorResource]:
    """The task's mirrors in the order of its spec; empty if it is not the caller's."""
    own = scoped(select(TaskMirror).where(TaskMirror.task_id == task_id), TaskMirror, principal)
    return [TaskMirrorResource.of(mirror) for mirror in session.scalars(own.order_by(TaskMirror.id))]


def forget(session: Session, task_id: str) -> None:
    """Stop mirroring the task. What is on the servers stays there."""
    session.execute(delete(TaskMirror).where(TaskMirror.task_id == task_id))


def _servers(session: Session, principal: Principal, spec: TaskSpec) -> Sequence[TrackingServer]:
    """The tracking servers that the spec names; all of type wandb where an integration leaves it open which one."""
    named = TrackingServer.name.in_({one.server for one in spec.integrations})
    any_wandb = any(one.server is None for one in spec.integrations)
    wanted = or_(named, TrackingServer.type == "wandb") if any_wandb else named
    own = scoped(select(TrackingServer).where(wanted), TrackingServer, principal).order_by(TrackingServer.id)
    return session.scalars(own.with_for_update(read=True, key_share=True)).all()


def _of(there: Sequence[TrackingServer], one: Integration) -> list[TrackingServer]:
    """The servers that the integration may mean: one, if it is right."""
    return [server for server in there if (server.type == "wandb" if one.server is None else server.name == one.server)]
