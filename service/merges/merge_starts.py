"""Gives queued merges to nodes: to those that have the base first, one to a node, in turn among tenants. Holds no device.

Lock order: starts, node, merged model.
"""

import logging

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.compatibility.capabilities import MERGES
from contract.model_revision import content_key
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.base_models.base_refs import fetch_capabilities
from service.fleet.base_models.model_catalog import files_of
from service.fleet.lease_clock import lease_until
from service.fleet.models import NODE_LOCK, BaseModel, Node
from service.fleet.node_health.quarantine import trouble_of
from service.merges.models import QUEUED, RUNNING, MergedModel
from service.tasks.lifecycle.placements import touch_nodes

log = logging.getLogger(__name__)

_STARTS = 0x6D657267  # "merg"; an advisory lock of this database
_LOOKED_AT = 64  # queued merges


def start_due_merges(dependencies: Dependencies) -> None:
    """Give queued merges to nodes that have none, and note why the others wait; each in a transaction of its own."""
    with dependencies.db.begin() as session:
        due = _due(session)
    for merged_id in due:
        _start(dependencies, merged_id)


def _due(session: Session) -> list[str]:
    """Those that wait, of tenants with the fewest running first, and of each tenant the oldest."""
    row = MergedModel
    running = select(row.tenant_id, func.count().label("held")).where(row.status == RUNNING, row.deleted_at.is_(None))
    busy = running.group_by(row.tenant_id).subquery()
    place = func.row_number().over(partition_by=row.tenant_id, order_by=row.id) + func.coalesce(busy.c.held, 0)
    waiting = select(row.id).outerjoin(busy, busy.c.tenant_id == row.tenant_id)
    waiting = waiting.where(row.status == QUEUED, row.deleted_at.is_(None), row.next_at <= clock(session))
    return list(session.scalars(waiting.order_by(place, row.id).limit(_LOOKED_AT)))


def _start(dependencies: Dependencies, merged_id: str) -> None:
    with dependencies.db.begin() as session:
        session.execute(select(func.pg_advisory_xact_lock(_STARTS)))
        now = clock(session)
        seen = session.get_one(MergedModel, merged_id)
        node, why = _node_for(session, dependencies, seen)
        if node is not None:
            session.refresh(node, with_for_update=NODE_LOCK)
        merged = session.scalar(
            select(MergedModel).where(MergedModel.id == merged_id).with_for_update().execution_options(populate_existing=True)
        )
        if merged is None or merged.status != QUEUED or merged.deleted_at is not None:
            return
        merged.waits_for = why
        if node is None or node.status != "ready" or node.drained_at is not None:
            return
        merged.status, merged.node_id, merged.fence = RUNNING, node.id, merged.fence + 1
        merged.lease_until = lease_until(now, dependencies.settings)
        touch_nodes(session, dependencies.wakeups, node.id)
        log.info("merged model %s goes to node %s", merged.id, node.name)


def _node_for(session: Session, dependencies: Dependencies, merged: MergedModel) -> tuple[Node | None, str | None]:
    """A node that may merge it now, or why there is none. Nothing is locked."""
    base = session.get(BaseModel, merged.base_model)
    if base is None or not base.enabled or base.revision != merged.base_revision:
        return (
            None,
            f"base model {merged.base_model} is not the one that the adapter was trained on; an admin can bring it back",
        )
    needs = {MERGES, *fetch_capabilities(base)}
    needs |= {f"model_type={base.model_type}"} if base.model_type is not None else set()
    ready = session.scalars(select(Node).where(Node.status == "ready", Node.drained_at.is_(None)).order_by(Node.id)).all()
    able = [node for node in ready if needs <= set(node.capabilities or ())]
    if not able:
        return None, f"none of the {len(ready)} nodes that are ready can merge {base.name}; upgrade a worker"
    now = clock(session)
    sound = [node for node in able if trouble_of(node, now, dependencies.settings) is None]
    row = MergedModel
    busy = set(session.scalars(select(row.node_id).where(row.status == RUNNING, row.deleted_at.is_(None))))
    free = [node for node in sound if node.id not in busy]
    if not free:
        return (
            None,
            "each node that can merge it is merging already" if sound else "the nodes that can are in trouble",
        )
    key = content_key((file.path, file.sha256) for file in files_of(session, base.name))
    return min(free, key=lambda node: (key not in (node.bases or ()), base.name not in node.tokens_per_second)), None
