"""Removes nodes that are away from the list: on an admin's word, or once they were away for long. What they did stays.

The row stays, hidden, while a placement names it. A node that registers is listed again, under the same id.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.engine import CursorResult

from service.database.engine import Database, clock
from service.dependencies import Dependencies
from service.fleet.models import NODE_LOCK, AnswerSession, Node, Placement
from service.fleet.node_health.node_drain import lock_node
from service.fleet.node_health.quarantine import mend
from service.http.problems import Conflict


class NodeInUse(Conflict):
    """It cannot be removed: it is there, or holds a task."""

    code, title = "node_in_use", "The node is in use"


_PLACEMENT = select(Placement.id).where(Placement.node_id == Node.id)
_LIVE = _PLACEMENT.where(Placement.ended_at.is_(None)).exists()
_SESSION = select(AnswerSession.id).where(AnswerSession.node_id == Node.id)


def remove(dependencies: Dependencies, node_id: str) -> None:
    """Remove a node that is away, revoke its credential, forget its drain, losses and speeds.

    Raises NotFound, and NodeInUse while it counts as ready or holds a placement.
    """
    with dependencies.db.begin() as session:
        node = lock_node(session, node_id)
        if node.status == "ready":
            raise NodeInUse(
                f"Node {node.name} sends heartbeats, the last one at {node.heartbeat_at:%H:%M:%S} UTC. Stop its worker, and "
                f"remove it once it has been silent for a lease ({dependencies.settings.lease_seconds:g} s)."
            )
        if session.scalar(select(_LIVE).where(Node.id == node_id)):
            raise NodeInUse(f"Node {node.name} still holds a task, which goes back to the queue within seconds; try again.")
        node.removed_at, node.credential_hash = clock(session), b""
        node.drained_at, node.tokens_per_second, node.device_losses = None, {}, {}
        mend(node)


def remove_away(db: Database, before: datetime) -> int:
    """Remove the nodes that are away and sent nothing since `before`; returns how many. Their credentials stay valid."""
    away = Node.status != "ready", Node.removed_at.is_(None), Node.heartbeat_at < before, ~_LIVE
    found = select(Node.id).where(*away).with_for_update(skip_locked=True, **NODE_LOCK)
    with db.begin() as session:
        gone = update(Node).where(Node.id.in_(found)).values(removed_at=clock(session))
        result = session.execute(gone.execution_options(synchronize_session=False))
        assert isinstance(result, CursorResult)
        return result.rowcount


def unnamed(before: datetime) -> tuple[ColumnElement[bool], ...]:
    """Of nodes that were removed before this moment and that neither a placement nor a session names. A ready one is none: a
    process of the version before, which welcomes it, knows no `removed_at`."""
    return Node.removed_at < before, Node.status != "ready", ~_PLACEMENT.exists(), ~_SESSION.exists()
