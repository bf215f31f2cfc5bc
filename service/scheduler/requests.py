"""Asking for a plan: a row in the asker's own transaction, and a wake-up once that has committed.

Knows nothing of how a plan is made.
"""

from sqlalchemy.orm import Session

from service.db import after_commit
from service.queue import Queue, QueueJob
from service.scheduler.models import PlanRequest


def request_plan(session: Session, queue: Queue, reason: str) -> None:
    """Record that something changed that matters to the plan (`reason`: up to 64 characters, for the log of plans)."""
    session.add(PlanRequest(reason=reason))
    after_commit(session, lambda: queue.wake(QueueJob.REPLAN))
