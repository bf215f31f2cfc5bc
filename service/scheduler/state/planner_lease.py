"""The planner's lease: one row with a token, so that one planner works at a time. Knows no plans."""

from datetime import timedelta

from sqlalchemy import delete, exists, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.database.engine import Database, new_id
from service.scheduler.models import PlannerLease, PlanRequest

LEASE = timedelta(seconds=20)  # longer than the solver's wall guard; after a planner is killed, planning stops for this long


class LeaseLost(Exception):
    """Another planner has taken the lease. The whole plan is rejected."""


def acquire_lease(db: Database) -> str | None:
    """A new token, if a plan is requested and no other planner's lease is running; else None."""
    token = new_id("planner")
    now = func.clock_timestamp()
    asked = select(literal(1), literal(token), now + LEASE).where(exists(select(PlanRequest.id)))
    free = insert(PlannerLease).from_select(["id", "token", "until"], asked)
    free = free.on_conflict_do_update(
        index_elements=[PlannerLease.id], set_={"token": token, "until": now + LEASE}, where=PlannerLease.until < now
    )
    with db.begin() as session:
        return session.scalar(free.returning(PlannerLease.token))


def release_lease(db: Database, token: str) -> None:
    with db.begin() as session:
        session.execute(delete(PlannerLease).where(PlannerLease.token == token))


def hold_lease(session: Session, token: str) -> None:
    """Lock and renew the lease in this transaction. Raises LeaseLost if another planner holds it."""
    renewed = update(PlannerLease).where(PlannerLease.token == token).values(until=func.clock_timestamp() + LEASE)
    if session.scalar(renewed.returning(PlannerLease.id)) is None:
        raise LeaseLost
