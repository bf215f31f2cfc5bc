"""HTTP routes for admins: nodes and plans."""

from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.messages.node_messages import Device
from contract.strict import Strict
from service.app_state import DependenciesDep
from service.authentication import AdminDb
from service.database.engine import Database, clock
from service.fleet import models
from service.fleet.node_health import node_drain, node_removal
from service.fleet.node_health.quarantine import Trouble, trouble_of
from service.http.pagination import Cursor, Limit, Page, page
from service.http.problems import FieldError, unread_columns
from service.http.request_bodies import NO_BODY
from service.http.response_schemas import problems
from service.scheduler.models import Plan
from service.settings import Settings

_OF_READY = ("stopping", "not_applying", "unreadable")  # what only a node can be whose heartbeats come

router = APIRouter(prefix="/v1", responses=problems(401, 403, 422))


class RunningTask(BaseModel):
    task_id: str
    device_indexes: list[int]
    since: datetime


class NodeResource(BaseModel):
    """A machine of the fleet."""

    object: Literal["node"] = "node"
    id: str
    name: str
    status: str = Field(
        description=(
            "ready; lost after it missed its heartbeats; stopping while its worker gives back what it runs, and stopped once "
            "that was away for a lease; quarantined after it lost three placements in a row; resting for a moment after a "
            "loss; disk_full while what runs there waits for room; not_applying where its heartbeats come but it does not act "
            "upon what it should run; unreadable where its row cannot be read, so that it gets nothing"
        )
    )
    trouble: str | None = Field(description="Why it is not ready, or what it lost lately, in a sentence")
    devices: list[Device]
    versions: dict[str, str]
    protocol: int = Field(description="Of the internal API, as it speaks it")
    capabilities: list[str] | None = Field(description="Fields and choices of specs that it understands; null: as of 0.1.0")
    losses: int = Field(description="Placements lost here in a row, since one last brought something to safety")
    device_losses: dict[int, int] = Field(
        description="By index of the GPU: executors lost on it since one there last saved something; it is taken last"
    )
    rests_until: datetime | None = Field(description="It takes nothing before")
    quarantined_at: datetime | None
    tokens_per_second: dict[str, float] = Field(description="Trained on each GPU, by base model, as measured")
    running: list[RunningTask]
    joined_at: datetime
    heartbeat_at: datetime
    drained_at: datetime | None = Field(description="Since when it takes nothing new")


class Draining(Strict):
    evict: bool = Field(default=False, description="Its tasks leave too, each once its jobs are safe; left out, they end there")


class PlanResource(BaseModel):
    """One decision of the scheduler, with what it knew."""

    object: Literal["plan"] = "plan"
    id: str
    created_at: datetime
    requests: int = Field(description="Changes that it answered")
    method: str = Field(
        description="start: everything fitted. greedy: by rule; batch: by rule, for the earliest end of a batch alone. "
        "cpsat: by the solver"
    )
    solver_status: str | None
    objective: float | None = Field(
        description="Weighted completion, in weight x seconds, of the tasks the solver saw; of a batch alone its makespan"
    )
    bound: float | None = Field(description="No plan for those tasks could cost less")
    seconds: float
    problem: dict[str, Any]
    decision: dict[str, Any]
    note: str | None
    problems: list[FieldError] | None = Field(default=None, description="What of its stored row cannot be read")

    @classmethod
    def of(cls, plan: Plan) -> "PlanResource":
        shown = cls.model_validate(plan, from_attributes=True)
        return shown.model_copy(update={"problems": unread_columns(plan, "plan", "problem", "decision")})


@router.post(
    "/admin/nodes/{node_id}/drain",
    tags=["admin"],
    operation_id="drain_node",
    summary="Let a node take nothing new",
    description="It stays drained, through any restart, until it is undrained.",
    responses=problems(404),
)
def drain_node(node_id: str, db: AdminDb, dependencies: DependenciesDep, how: Draining | None = None) -> NodeResource:
    node_drain.drain(replace(dependencies, db=db), node_id, evict=how is not None and how.evict)
    return _found(db, dependencies.settings, node_id)


@router.post(
    "/admin/nodes/{node_id}/undrain",
    tags=["admin"],
    operation_id="undrain_node",
    summary="Let a node take tasks again",
    description="It is no longer drained; if it was quarantined, its losses are forgotten.",
    responses=problems(404),
    dependencies=[NO_BODY],
)
def undrain_node(node_id: str, db: AdminDb, dependencies: DependenciesDep) -> NodeResource:
    node_drain.undrain(replace(dependencies, db=db), node_id)
    return _found(db, dependencies.settings, node_id)


@router.delete(
    "/admin/nodes/{node_id}",
    tags=["admin"],
    operation_id="delete_node",
    summary="Remove a node that is away",
    description=(
        "One that is lost or stopped and holds no task. Its credential is revoked: it joins again, under the same id, with "
        "a join token. What ran there stays readable. A node that was away for MOTET_NODE_DAYS is removed by itself, and its "
        "credential stays valid."
    ),
    responses=problems(404, 409),
)
def delete_node(node_id: str, db: AdminDb, dependencies: DependenciesDep) -> NodeResource:
    node_removal.remove(replace(dependencies, db=db), node_id)
    return _found(db, dependencies.settings, node_id)


@router.get("/admin/nodes", tags=["admin"], operation_id="list_nodes", summary="List the fleet's nodes by name")
def list_nodes(db: AdminDb, dependencies: DependenciesDep) -> Page[NodeResource]:
    with db.begin() as session:
        nodes = list(
            session.scalars(select(models.Node).where(models.Node.removed_at.is_(None)).order_by(func.lower(models.Node.name)))
        )
        return Page(data=_nodes(session, dependencies.settings, nodes), next_cursor=None)


@router.get("/admin/plans", tags=["admin"], operation_id="list_plans", summary="List the scheduler's plans, the newest first")
def list_plans(db: AdminDb, cursor: Cursor = None, limit: Limit = 20) -> Page[PlanResource]:
    with db.begin() as session:
        return page(session, select(Plan), Plan, cursor, limit, lambda rows: [PlanResource.of(plan) for plan in rows])


def _found(db: Database, settings: Settings, node_id: str) -> NodeResource:
    with db.begin() as session:
        return _nodes(session, settings, [session.get_one(models.Node, node_id)])[0]


def _nodes(session: Session, settings: Settings, nodes: list[models.Node]) -> list[NodeResource]:
    ids = [node.id for node in nodes]
    live = select(models.Placement).where(models.Placement.ended_at.is_(None), models.Placement.node_id.in_(ids))
    running: dict[str, list[RunningTask]] = {node.id: [] for node in nodes}
    for one in session.scalars(live):
        running[one.node_id].append(RunningTask(task_id=one.task_id, device_indexes=one.device_indexes, since=one.created_at))
    now = clock(session)
    return [_node(node, running[node.id], trouble_of(node, now, settings)) for node in nodes]


def _node(node: models.Node, running: list[RunningTask], trouble: Trouble | None) -> NodeResource:
    lost = node.status != "ready"
    return NodeResource(
        id=node.id,
        name=node.name,
        status=node.presence if lost or trouble is None else trouble.status,
        trouble=None if trouble is None or (lost and trouble.status in _OF_READY) else trouble.to_admins,
        devices=[Device.model_validate(device) for device in node.devices],
        versions=node.versions,
        protocol=node.protocol,
        capabilities=node.capabilities,
        losses=len(node.losing),
        device_losses={int(index): lost for index, lost in node.device_losses.items()},
        rests_until=node.rests_until,
        quarantined_at=node.quarantined_at,
        tokens_per_second=node.tokens_per_second,
        running=running,
        joined_at=node.joined_at,
        heartbeat_at=node.heartbeat_at,
        drained_at=node.drained_at,
    )
