"""Whose turn it is to plan: one leased row with a token. Knows nothing of plans."""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.db import Database, clock, new_id
from service.scheduler.models import PlannerLease

LEASE = timedelta(seconds=20)  # above the wall guard of the solver; a planner that was killed holds others up this long


class LeaseLost(Exception):
    """Another planner took over while this one was thinking. Its plan is rejected whole."""


def take(db: Database) -> str | None:
    """A token of our own, unless another planner's lease runs."""
    token = new_id("planner")
    now = func.clock_timestamp()
    row = insert(PlannerLease).values(id=1, token=token, until=now + LEASE)
    free = row.on_conflict_do_update(
        index_elements=[PlannerLease.id], set_={"token": token, "until": now + LEASE}, where=PlannerLease.until < now
    )
    with db.begin() as session:
        return session.scalar(free.returning(PlannerLease.token))


def let_go(db: Database, token: str) -> None:
    with db.begin() as session:
        session.execute(delete(PlannerLease).where(PlannerLease.token == token))


def hold(session: Session, token: str) -> None:
    """Lock the lease for this transaction and renew it; raises LeaseLost if it is another's."""
    lease = session.scalar(select(PlannerLease).where(PlannerLease.token == token).with_for_update())
    if lease is None:
        raise LeaseLost
    lease.until = clock(session) + LEASE
