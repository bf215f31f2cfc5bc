"""The end of placements, and whose desired state that changes. Knows nothing of what becomes of the task."""

from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.db import after_commit
from service.fleet.models import Node, Placement
from service.hints import Hints


def touch_node(session: Session, hints: Hints, node_id: str) -> None:
    """Raise the node's desired version and, after commit, hint it."""
    session.execute(update(Node).where(Node.id == node_id).values(desired_version=Node.desired_version + 1))
    after_commit(session, lambda: hints.desired_changed(node_id))


def live_placement(session: Session, task_id: str) -> Placement | None:
    """The task's live placement, of which there is at most one. The caller holds the task's row lock."""
    return session.scalar(select(Placement).where(Placement.task_id == task_id, Placement.ended_at.is_(None)))


def end_placement(session: Session, hints: Hints, placement: Placement, reason: str) -> None:
    """End a live placement (`reason` is kept in its row). The caller holds the task's row lock and has raised its fence."""
    placement.ended_at = _now(session)
    placement.end_reason = reason
    touch_node(session, hints, placement.node_id)


def _now(session: Session) -> datetime:
    return session.scalar(select(func.clock_timestamp()))  # type: ignore[return-value]
