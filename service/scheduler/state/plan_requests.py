"""Requests a replan: a row in the caller's own transaction, and a wake-up after it commits. Knows no plans."""

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.background.queue import Queue, QueueJob
from service.database.engine import after_commit
from service.fleet.models import Node, Placement
from service.scheduler.explain.waiting_text import NOT_PLANNED
from service.scheduler.models import PlanRequest
from service.scheduler.replan_pacing import Asked
from service.tasks.models import Task

ARRIVED = "task_arrived"  # the only reason that frees no GPUs and changes no tenant's due


def request_plan(session: Session, queue: Queue, reason: str) -> None:
    """Record a change that requires a new plan (`reason`: up to 64 characters, for the log of plans)."""
    session.add(PlanRequest(reason=reason))
    after_commit(session, lambda: queue.wake(QueueJob.REPLAN))


def asked_for(session: Session) -> Asked:
    """Why plans are requested now. The session must see all tenants' rows."""
    held = select(func.sum(func.cardinality(Placement.device_indexes))).where(Placement.ended_at.is_(None))
    of_node = held.where(Placement.node_id == Node.id).correlate(Node).scalar_subquery()
    free = func.max(func.jsonb_array_length(Node.devices) - func.coalesce(of_node, 0))
    most = select(free).where(Node.status == "ready", Node.drained_at.is_(None)).scalar_subquery()
    unseen = or_(Task.waiting.is_(None), Task.waiting["code"].astext == NOT_PLANNED)
    least = select(func.min(Task.gpus)).where(Task.status == TaskStatus.QUEUED, unseen).scalar_subquery()
    changed = select(PlanRequest.id).where(PlanRequest.reason != ARRIVED).exists()
    found = session.execute(select(changed, func.coalesce(least <= most, False))).one()
    return Asked(*found)
