"""Requests a replan: a row in the caller's own transaction, and a wake-up after it commits. Knows no plans."""

from sqlalchemy.orm import Session

from service.database.engine import after_commit
from service.messaging.queue import Queue, QueueJob
from service.scheduler.models import PlanRequest

ARRIVED = "task_arrived"  # the only reason that frees no GPUs and changes no tenant's due


def request_plan(session: Session, queue: Queue, reason: str) -> None:
    """Record a change that requires a new plan (`reason`: up to 64 characters, for the log of plans)."""
    session.add(PlanRequest(reason=reason))
    after_commit(session, lambda: queue.wake(QueueJob.REPLAN))
