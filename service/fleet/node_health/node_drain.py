"""Drains nodes: a drained node takes no new placements and, if asked, evicts its tasks. Draining survives reboots."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import RequeueReason
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.models import NODE_LOCK, Node, Placement
from service.fleet.node_health.quarantine import mend
from service.http.problems import NotFound, shown
from service.messaging.plan_requests import request_plan
from service.tasks.lifecycle.placements import ask_to_leave, lock_placement


def drain(dependencies: Dependencies, node_id: str, evict: bool) -> None:
    """Stop new placements on the node; with `evict` its tasks leave too, each once its jobs are saved. Raises NotFound.

    Idempotent.
    """
    with dependencies.db.begin() as session:
        node = lock_node(session, node_id)
        if node.drained_at is None:
            node.drained_at = clock(session)
            request_plan(session, dependencies.queue, "node_drained")
        name = node.name
        live = select(Placement.id).where(
            Placement.node_id == node_id, Placement.ended_at.is_(None), Placement.leaving.is_(None)
        )
        left = list(session.scalars(live)) if evict else []
    for placement_id in left:
        with dependencies.db.begin() as session:
            found = lock_placement(session, placement_id)
            if found is not None and found[1].ended_at is None and found[1].leaving is None:
                ask_to_leave(session, dependencies, *found, RequeueReason.NODE_DRAINED, f"node {name} is being drained")


def undrain(dependencies: Dependencies, node_id: str) -> None:
    """Allow placements on the node again; also lifts a quarantine and forgets its losses. Raises NotFound."""
    with dependencies.db.begin() as session:
        node = lock_node(session, node_id)
        if node.drained_at is not None:
            node.drained_at = None
            request_plan(session, dependencies.queue, "node_undrained")
        if mend(node):
            request_plan(session, dependencies.queue, "node_mended")


def lock_node(session: Session, node_id: str) -> Node:
    """The node's row, locked. Raises NotFound, also if it was removed."""
    node = session.get(Node, node_id, with_for_update=NODE_LOCK)
    if node is None or node.removed_at is not None:
        raise NotFound(f"There is no node {shown(node_id)!r}; GET /v1/admin/nodes lists what there is.")
    return node
