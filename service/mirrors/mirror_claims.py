"""Task mirrors in their table: claimed for a visit, and what becomes of them after it. Each step is a transaction.

A claim hides a mirror from other couriers until its visibility timeout, which each recorded step of the visit renews; if its
courier dies, another goes on from there, unless its couriers die again and again (poison_rows.py). An advisory lock puts claims
in turn, so a tenant's visits at once, and those of slow servers, are bounded over all processes.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, select, text, update
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.messaging.claim_courier import Taken
from service.messaging.poison_rows import GIVEN_UP as POISON
from service.messaging.poison_rows import MOST_UNRECORDED
from service.mirrors.models import TaskMirror, TrackingServer

log = logging.getLogger(__name__)

OF_TENANT = 4  # visits at once
SLOW_AT_ONCE = 8  # visits of servers whose last visit failed or took long, of all tenants
EVERY = timedelta(seconds=10)  # between two visits of a task that goes on
WAITS = tuple(timedelta(seconds=s) for s in (10, 30, 120, 600, 1800))  # after each failed visit; the last one ever after
GIVEN_UP = timedelta(hours=24)  # of failed visits in a row
HELD = timedelta(seconds=60)  # visibility timeout, longer than any call
_LOOKED_AT = 64  # due mirrors per query
_CLAIMS = 0x6D697272  # "mirr"; an advisory lock of this database

# Due mirrors of tasks that have changed since their last visit, or whose visit failed; tenants with the fewest visits first.
_DUE = text(
    """WITH ranked AS (
        SELECT m.id, m.tenant_id, m.next_at, m.unrecorded > 0 AS suspect, s.slow,
            row_number() OVER (PARTITION BY m.tenant_id ORDER BY m.next_at, m.id) AS nth
        FROM task_mirrors m JOIN tracking_servers s ON s.id = m.server_id
        JOIN tasks t ON t.id = m.task_id AND t.deleted_at IS NULL
        WHERE m.state = 'active' AND m.next_at <= :now AND (m.seen_version <> t.version OR m.attempts > 0)
            AND m.tenant_id <> ALL(:full) AND NOT (s.slow AND :no_slow) AND NOT (m.unrecorded > 0 AND :no_suspect)
    )
    SELECT ranked.* FROM ranked
    LEFT JOIN unnest(CAST(:busy AS text[]), CAST(:visits AS bigint[])) AS busy (tenant_id, visits) USING (tenant_id)
    WHERE nth <= :each
    ORDER BY nth + coalesce(visits, 0), next_at LIMIT :most"""
)


class ClaimLost(Exception):
    """The mirror was stopped, changed or forgotten, or its claim timed out and another courier has it."""


@dataclass(frozen=True)
class ClaimedMirror:
    """A mirror that is visited, of the tracking server of this `type` at `url`. credentials: sealed."""

    id: str
    claim: int
    task_id: str
    server_id: str
    type: str
    url: str = field(repr=False)
    credentials: bytes | None = field(repr=False)


class MirrorClaims:
    def __init__(self, db: Database) -> None:
        self._db = db

    def take(self, most: int) -> Taken[ClaimedMirror]:
        """Claim due mirrors, at most so many."""
        with self._db.begin() as session:
            session.execute(select(func.pg_advisory_xact_lock(_CLAIMS)))
            now = clock(session)
            found = [_claim(session, id, now) for id in _allowed(session, now, most)]
            return Taken([one for one in found if one is not None])

    def visited(self, claimed: ClaimedMirror, version: int, left: bool, finished: bool) -> None:
        """Note a visit that went well, when the task was at `version`. left: there is more to send now. Raises ClaimLost."""
        with self._db.begin() as session:
            now = clock(session)
            record(
                session,
                claimed,
                state="finished" if finished else "active",
                seen_version=0 if left else version,
                next_at=now if left else now + EVERY,
                held_until=None,
                error=None,
                attempts=0,
                unrecorded=0,
                failing_since=None,
            )

    def failed(self, claimed: ClaimedMirror, error: str, final: bool, wait: timedelta | None = None) -> None:
        """Note a visit that failed: the mirror is given up if that is `final`, or after GIVEN_UP. wait: the least time that the
        server asks to be left alone. Raises ClaimLost."""
        with self._db.begin() as session:
            now = clock(session)
            since = func.coalesce(TaskMirror.failing_since, now)
            waits = case(*((TaskMirror.attempts == n, now + wait) for n, wait in enumerate(WAITS[:-1])), else_=now + WAITS[-1])
            over = case((since <= now - GIVEN_UP, "failed"), else_="active")
            record(
                session,
                claimed,
                state="failed" if final else over,
                error=error,
                attempts=TaskMirror.attempts + 1,
                unrecorded=0,
                failing_since=since,
                next_at=func.greatest(waits, now + wait) if wait is not None else waits,
                held_until=None,
            )

    def note_pace(self, claimed: ClaimedMirror, slow: bool) -> None:
        """Note whether the server failed or took long, by which its next visits are bounded."""
        with self._db.begin() as session:
            changed = update(TrackingServer).where(TrackingServer.id == claimed.server_id, TrackingServer.slow.is_(not slow))
            session.execute(changed.values(slow=slow))

    def release(self, claimed: ClaimedMirror) -> None:
        """Give back a mirror whose visit will not end in this process."""
        with self._db.begin() as session:
            given = update(TaskMirror).where(TaskMirror.id == claimed.id, TaskMirror.claim == claimed.claim)
            now = func.clock_timestamp()
            back = func.greatest(TaskMirror.unrecorded - 1, 0)
            session.execute(given.values(claim=TaskMirror.claim + 1, held_until=None, next_at=now, unrecorded=back))


def record(session: Session, claimed: ClaimedMirror, **values: Any) -> None:
    """Change the claimed mirror; with no values, renew its claim. Raises ClaimLost, and has then changed nothing."""
    held = func.clock_timestamp() + HELD
    own = update(TaskMirror).where(TaskMirror.id == claimed.id, TaskMirror.claim == claimed.claim, TaskMirror.state == "active")
    own = own.values(**({"held_until": held, "next_at": held} | values)).returning(TaskMirror.id)
    if session.scalar(own.execution_options(synchronize_session=False)) is None:
        raise ClaimLost


def _allowed(session: Session, now: datetime, most: int) -> list[str]:
    """Ids of due mirrors that the tenants' bound, that of slow servers, and that of suspects allow."""
    again = func.count().filter(TaskMirror.unrecorded > 1)  # whose visit before this one has no outcome
    held = select(TaskMirror.tenant_id, TrackingServer.slow, func.count(), again).join(
        TrackingServer, TrackingServer.id == TaskMirror.server_id
    )
    busy, slow, suspects = Counter[str](), 0, 0
    for tenant, is_slow, count, suspected in session.execute(
        held.where(TaskMirror.held_until > now).group_by(TaskMirror.tenant_id, TrackingServer.slow)
    ):
        busy[tenant] += count
        slow += count if is_slow else 0
        suspects += suspected
    full = [tenant for tenant, count in busy.items() if count >= OF_TENANT]
    bounds = {"full": full, "busy": list(busy), "visits": list(busy.values()), "no_slow": slow >= SLOW_AT_ONCE}
    bounds["no_suspect"] = suspects > 0
    allowed = list[str]()
    for row in session.execute(_DUE, {"now": now, "each": OF_TENANT, "most": _LOOKED_AT, **bounds}):
        if row.suspect and suspects:
            continue
        if len(allowed) < most and busy[row.tenant_id] < OF_TENANT and not (row.slow and slow >= SLOW_AT_ONCE):
            allowed.append(row.id)
            busy[row.tenant_id] += 1
            slow += row.slow
            suspects += row.suspect
    return allowed


def _claim(session: Session, id: str, now: datetime) -> ClaimedMirror | None:
    """None where it was stopped meanwhile, or where somebody changes it now, maybe with others: who held one claim and waited
    for another could wait for ever."""
    due = select(TaskMirror).where(TaskMirror.id == id, TaskMirror.state == "active", TaskMirror.next_at <= now)
    mirror = session.scalar(due.with_for_update(skip_locked=True))
    server = session.get(TrackingServer, mirror.server_id) if mirror is not None and mirror.server_id is not None else None
    if mirror is None or server is None:
        return None
    mirror.claim += 1
    if mirror.unrecorded >= MOST_UNRECORDED:
        mirror.state, mirror.error, mirror.held_until = "failed", POISON, None
        log.error("mirror %s: %s", mirror.id, POISON)
        return None
    mirror.unrecorded += 1
    mirror.held_until = mirror.next_at = now + HELD
    return ClaimedMirror(id, mirror.claim, mirror.task_id, server.id, server.type, server.url, server.credentials)
