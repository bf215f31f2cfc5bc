"""Gives queued merges to nodes: to those that have the base first, one to a node, in turn among tenants. Holds no device.

Lock order: starts, node, merged model.
"""

import logging
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.compatibility.capabilities import MERGES
from contract.model_revision import content_key
from service.database.checked_json import UnreadValue
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
_UNABLE = timedelta(seconds=30)  # until one is looked at again that no node is able to do: the others get their turn


class _Wait(NamedTuple):
    """Why no node gets a merge now, and how long it need not be looked at."""

    why: str
    pause: timedelta = timedelta(0)


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
        found = _node_for(session, dependencies, seen)
        if isinstance(found, Node):
            session.refresh(found, with_for_update=NODE_LOCK)
        merged = session.scalar(
            select(MergedModel).where(MergedModel.id == merged_id).with_for_update().execution_options(populate_existing=True)
        )
        if merged is None or merged.status != QUEUED or merged.deleted_at is not None:
            return
        if isinstance(found, _Wait):
            merged.waits_for, merged.next_at = found.why, now + found.pause
            return
        if found.status != "ready" or found.takes_nothing_new:
            return
        merged.status, merged.node_id, merged.fence, merged.waits_for = RUNNING, found.id, merged.fence + 1, None
        merged.acknowledged_at, merged.lease_until = None, lease_until(now, dependencies.settings)
        touch_nodes(session, dependencies.wakeups, found.id)
        log.info("merged model %s goes to node %s", merged.id, found.name)


def _node_for(session: Session, dependencies: Dependencies, merged: MergedModel) -> Node | _Wait:
    """A node that may merge it now, or why there is none. Nothing is locked."""
    for stored in (merged.adapter_files, merged.files):
        if isinstance(stored, UnreadValue):
            return _Wait(f"{stored.why}; delete it, and merge the adapter again", _UNABLE)
    base = session.get(BaseModel, merged.base_model)
    if base is None or not base.enabled or base.revision != merged.base_revision:
        why = f"base model {merged.base_model} is not the one that the adapter was trained on; an admin can bring it back"
        return _Wait(why, _UNABLE)
    needs = {MERGES, *fetch_capabilities(base)}
    needs |= {f"model_type={base.model_type}"} if base.model_type is not None else set()
    there = session.scalars(select(Node).where(Node.status == "ready").order_by(Node.id))
    ready = [node for node in there if not node.takes_nothing_new]
    able = [node for node in ready if needs <= set(node.capabilities or ())]
    if not able:
        return _Wait(f"none of the {len(ready)} nodes that are ready can merge {base.name}; upgrade a worker", _UNABLE)
    now = clock(session)
    sound = [node for node in able if trouble_of(node, now, dependencies.settings) is None]
    row = MergedModel
    busy = set(session.scalars(select(row.node_id).where(row.status == RUNNING, row.deleted_at.is_(None))))
    free = [node for node in sound if node.id not in busy]
    if not sound:
        return _Wait("the nodes that can are in trouble", _UNABLE)
    if not free:
        return _Wait("each node that can merge it is merging already")
    key = content_key((file.path, file.sha256) for file in files_of(session, base.name))
    return min(free, key=lambda node: (key not in (node.bases or ()), base.name not in node.tokens_per_second))
