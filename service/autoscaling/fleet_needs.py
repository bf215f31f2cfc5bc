"""Reads the fleet's needs from what is stored: queued tasks with why they wait, nodes, and what these hold."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.autoscaling.missing_gpus import tasks_beyond
from service.autoscaling.resource import AutoscalingState, FreeGpus, IdleNode, WantedGpus
from service.database.engine import clock
from service.fleet.models import AnswerSession, Node, Placement
from service.fleet.node_health.quarantine import trouble_of
from service.merges.models import RUNNING, MergedModel
from service.scheduler.explain.reason_codes import Code
from service.settings import Settings
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import NOT_BEFORE, ROW_UNREADABLE
from service.tasks.plan_status.wanted_gpus import WANTED_GPUS

# no further node would start them
_NOT_FOR_GPUS = (Code.WAITING_FOR_QUOTA, Code.WAITING_FOR_VERSION, Code.NO_NODE_UNDERSTANDS, NOT_BEFORE, ROW_UNREADABLE)


def autoscaling_state(session: Session, settings: Settings) -> AutoscalingState:
    """The needs as of now. Reads all tenants' rows."""
    now = clock(session)
    ready = session.scalars(select(Node).where(Node.status == "ready", Node.removed_at.is_(None)).order_by(Node.name))
    nodes = [node for node in ready if not node.unreadable]
    held = _held(session)
    free = {
        node.id: len(node.devices) - len(held[node.id])
        for node in nodes
        if not node.takes_nothing_new and trouble_of(node, now, settings) is None
    }
    by_type = Counter[str]()
    for node in nodes:
        if free.get(node.id, 0) > 0:
            by_type[node.device_type] += free[node.id]
    return AutoscalingState(
        at=now,
        wanted=_wanted(session, free),
        free=[FreeGpus(type=type, gpus=gpus) for type, gpus in sorted(by_type.items())],
        idle_nodes=_idle(session, [node for node in nodes if not held[node.id] and node.stopping_since is None]),
    )


def _held(session: Session) -> Mapping[str, set[int]]:
    """By node, the indexes of the devices that placements hold, alone or together."""
    held = defaultdict[str, set[int]](set)
    live = select(Placement.node_id, Placement.device_indexes).where(Placement.ended_at.is_(None))
    for node_id, indexes in session.execute(live):
        held[node_id].update(indexes)
    return held


def _wanted(session: Session, free: Mapping[str, int]) -> list[WantedGpus]:
    code = Task.waiting["code"].astext
    nowhere = and_(code.is_not(None), code == Code.NO_NODE_FITS)  # beside free GPUs that it cannot take
    since = func.min(func.coalesce(Task.queued_at, Task.created_at))
    rows = session.execute(
        select(WANTED_GPUS, func.count(), func.count().filter(nowhere), since)
        .where(Task.status == TaskStatus.QUEUED, or_(code.is_(None), code.not_in(_NOT_FOR_GPUS)))
        .group_by(WANTED_GPUS)
        .order_by(WANTED_GPUS)
    ).all()
    beyond = tasks_beyond({width: tasks - nowhere for width, tasks, nowhere, _ in rows}, [*free.values()])
    return [
        WantedGpus(
            width=width,
            tasks=tasks,
            tasks_that_fit_no_node=nowhere,
            gpus=tasks * width,
            missing_gpus=(beyond[width] + nowhere) * width,
            waiting_since=oldest,
        )
        for width, tasks, nowhere, oldest in rows
    ]


def _idle(session: Session, candidates: list[Node]) -> list[IdleNode]:
    """Of nodes without a placement, those that neither answer nor merge, with when the last of all that ended."""
    ids = [node.id for node in candidates]
    answering = select(AnswerSession.node_id).where(AnswerSession.node_id.in_(ids), AnswerSession.ended_at.is_(None))
    row = MergedModel
    merging = select(row.node_id).where(row.node_id.in_(ids), row.status == RUNNING, row.deleted_at.is_(None))
    busy = {*session.scalars(answering), *session.scalars(merging)}
    idle = [node for node in candidates if node.id not in busy]
    ended = _last_ends(session, [node.id for node in idle])
    found = [
        IdleNode(
            id=node.id,
            name=node.name,
            type=node.device_type,
            gpus=len(node.devices),
            idle_since=max(node.joined_at, ended.get(node.id, node.joined_at)),
            drained=node.drained_at is not None,
        )
        for node in idle
    ]
    return sorted(found, key=lambda node: (node.idle_since, node.name))


def _last_ends(session: Session, ids: list[str]) -> dict[str, datetime]:
    """By node, when what it ran last ended. What retention has removed, it has not run for months."""
    ran: tuple[tuple[Any, Any], ...] = (
        (Placement.node_id, Placement.ended_at),
        (AnswerSession.node_id, AnswerSession.ended_at),
        (MergedModel.node_id, MergedModel.ended_at),
    )
    # a subquery for each node: the maximum is then the last entry of an index, where grouping would read all that ever ran
    last = (select(func.max(ended)).where(node == Node.id, ended.is_not(None)).scalar_subquery() for node, ended in ran)
    found = session.execute(select(Node.id, func.greatest(*last)).where(Node.id.in_(ids)))
    return {node_id: ended_at for node_id, ended_at in found if ended_at is not None}
