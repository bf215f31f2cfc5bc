"""Texts in their table: claimed for a call, its outcome recorded, gradings that are over found. Each step is a transaction.

A claim hides a text from other couriers until its visibility timeout; if its courier dies, another sends it again then, unless
its couriers die again and again (poison_rows.py). An
advisory lock puts claims in turn, so a tenant's texts in flight and a grader's rate hold over all processes.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, text, update
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.graders.endpoint_call import Graded, TextToGrade, trace_id
from service.graders.models import EndpointGrader, GradedText, TextGrading
from service.graders.waiting_texts import lock_graders
from service.messaging.claim_courier import Taken
from service.messaging.poison_rows import GIVEN_UP, MOST_UNRECORDED

log = logging.getLogger(__name__)

OF_TENANT = 8  # texts in flight at most
WAITS = tuple(timedelta(seconds=s) for s in (5, 30, 120))  # before the second, third, fourth try
MOST_UNGRADED = 0.1  # of an evaluation's texts; with more, its mean would tell nothing, and the rest is not sent
_LOOKED_AT = 64  # due texts per query
_CLAIMS = 0x67726164  # "grad"; an advisory lock of this database
_SLACK = timedelta(seconds=30)  # of the visibility timeout, beyond the longest call

# The first due texts of each grader that may send one, from the index of texts by grader: what it costs does not grow with the
# texts that wait. Tenants with the fewest texts in flight come first.
_DUE = text(
    """WITH ranked AS (
        SELECT due.*, r.tenant_id, r.id AS grader_id, r.rate_limit, r.url, r.headers,
            row_number() OVER (PARTITION BY r.tenant_id ORDER BY due.next_at, due.grading_id, due.place) AS nth
        FROM endpoint_graders r JOIN tasks ON tasks.id = r.task_id AND tasks.deleted_at IS NULL CROSS JOIN LATERAL (
            SELECT t.grading_id, t.place, t.next_at, t.unrecorded > 0 AS suspect
            FROM graded_texts t JOIN text_gradings g ON g.id = t.grading_id
            WHERE t.grader_id = r.id AND NOT t.done AND t.next_at <= :now AND t.unrecorded < :most_unrecorded
                AND NOT (t.unrecorded > 0 AND :no_suspect) AND NOT g.ended AND g.give_up_at > :now
            ORDER BY t.next_at, t.grading_id, t.place LIMIT :each
        ) due
        WHERE (r.next_call_at IS NULL OR r.next_call_at <= :now) AND r.tenant_id <> ALL(:full)
    )
    SELECT ranked.* FROM ranked
    LEFT JOIN unnest(CAST(:busy AS text[]), CAST(:calls AS bigint[])) AS busy (tenant_id, calls) USING (tenant_id)
    ORDER BY nth + coalesce(calls, 0), next_at LIMIT :most"""
)


@dataclass(frozen=True)
class ClaimedText:
    """A text in flight. headers: sealed. Its repr is of a log line, which holds no texts."""

    grading_id: str
    place: int
    url: str = field(repr=False)
    headers: bytes | None = field(repr=False)
    text: TextToGrade = field(repr=False)


class TextClaims:
    def __init__(self, db: Database, call_seconds: float) -> None:
        """call_seconds: the longest that a call takes."""
        self._db, self._held = db, timedelta(seconds=call_seconds) + _SLACK

    def take(self, most: int) -> Taken[ClaimedText]:
        """Claim due texts, at most so many; `seconds`: after which a grader's rate allows its next text."""
        with self._db.begin() as session:
            session.execute(select(func.pg_advisory_xact_lock(_CLAIMS)))
            now = clock(session)
            allowed = _allowed(session, now, most)
            lock_graders(session, EndpointGrader.id.in_({one.grader_id for one in allowed}))
            claimed = [_claim(session, one, now, now + self._held) for one in allowed]
            return Taken([one for one in claimed if one is not None], _until_next(session, now))

    def record(self, claimed: ClaimedText, outcome: Graded) -> bool:
        """Note a call's outcome. Returns whether its grading is over."""
        with self._db.begin() as session:
            found = _locked(session, claimed.grading_id, claimed.place)
            if found is None or found[1].done:
                return False  # forgotten, or another courier had its score first
            grading, row = found
            row.held_until, row.score, row.error, row.unrecorded = None, outcome.score, outcome.error, 0
            row.attempts += outcome.score is None
            if outcome.again and row.attempts <= len(WAITS):
                row.next_at = clock(session) + WAITS[row.attempts - 1]
                return False
            return _done(session, grading, row)

    def release(self, claimed: ClaimedText) -> None:
        """Give back a text whose call will not end in this process."""
        with self._db.begin() as session:
            found = _locked(session, claimed.grading_id, claimed.place)
            if found is not None and not found[1].done:
                found[1].held_until, found[1].next_at = None, clock(session)
                found[1].unrecorded = max(0, found[1].unrecorded - 1)

    def give_up_poison(self) -> None:
        """End texts whose attempts ended their processes."""
        poison = and_(GradedText.held_until <= func.now(), GradedText.unrecorded >= MOST_UNRECORDED, ~GradedText.done)
        with self._db.begin() as session:
            keys = session.execute(select(GradedText.grading_id, GradedText.place).where(poison)).all()
        for grading_id, place in keys:
            with self._db.begin() as session:
                found = _locked(session, grading_id, place)
                if found is None or found[1].done:
                    continue
                grading, row = found
                log.error("text %d of %s: %s", place, grading_id, GIVEN_UP)
                row.held_until, row.error = None, GIVEN_UP
                row.attempts += 1
                _done(session, grading, row)

    def over(self) -> list[str]:
        """Gradings that are over and that nobody has finished: a process died before it could, or their time is up."""
        with self._db.begin() as session:
            return list(session.scalars(select(TextGrading.id).where(is_over()).order_by(TextGrading.id)))


def is_over() -> ColumnElement[bool]:
    """Whether a grading sends no more texts: all are done, too many of them without a score, or its time was up as the
    transaction began."""
    return or_(TextGrading.ended, TextGrading.give_up_at <= func.now())


def _no_more() -> ColumnElement[bool]:
    """Whether no text of these is to be sent any more: an aggregate over the texts of one grading."""
    failed = func.count().filter(GradedText.done, GradedText.score.is_(None))
    return or_(func.bool_and(GradedText.done), failed > MOST_UNGRADED * func.count())


def _allowed(session: Session, now: datetime, most: int) -> list[Any]:
    """Due texts that the tenants' and graders' bounds allow."""
    in_flight = select(GradedText.tenant_id, func.count()).where(GradedText.held_until > now).group_by(GradedText.tenant_id)
    busy = Counter({tenant: count for tenant, count in session.execute(in_flight)})
    again = exists().where(GradedText.held_until > now, GradedText.unrecorded > 1)  # their attempts before have no outcome
    suspects = bool(session.scalar(select(again)))
    full = [tenant for tenant, count in busy.items() if count >= OF_TENANT]
    bounds = {"full": full, "busy": list(busy), "calls": list(busy.values())}
    bounds |= {"no_suspect": suspects, "most_unrecorded": MOST_UNRECORDED}
    rows = session.execute(_DUE, {"now": now, "each": OF_TENANT, "most": _LOOKED_AT, **bounds})
    allowed, paced = list[Any](), set[str]()
    for row in rows:
        if row.suspect and suspects:
            continue
        if len(allowed) < most and busy[row.tenant_id] < OF_TENANT and row.grader_id not in paced:
            allowed.append(row)
            suspects = suspects or row.suspect
            busy[row.tenant_id] += 1
            if row.rate_limit is not None:
                paced.add(row.grader_id)
    return allowed


def _claim(session: Session, due: Any, now: datetime, until: datetime) -> ClaimedText | None:
    held = update(GradedText).where(GradedText.grading_id == due.grading_id, GradedText.place == due.place)
    row = session.execute(
        held.where(GradedText.done.is_(False), GradedText.next_at <= now)
        .values(held_until=until, next_at=until, unrecorded=GradedText.unrecorded + 1)
        .returning(GradedText.prompt, GradedText.reference, GradedText.text, GradedText.finish_reason)
    ).one_or_none()
    if row is None:
        return None  # forgotten meanwhile
    if due.rate_limit is not None:
        paced = update(EndpointGrader).where(EndpointGrader.id == due.grader_id)
        session.execute(paced.values(next_call_at=now + timedelta(seconds=1 / due.rate_limit)))
    text = TextToGrade(row.prompt, row.reference, row.text, row.finish_reason, trace_id(due.grading_id, due.place))
    return ClaimedText(due.grading_id, due.place, due.url, due.headers, text)


def _until_next(session: Session, now: datetime) -> float | None:
    grading = exists().where(TextGrading.grader_id == EndpointGrader.id)
    soonest = session.scalar(select(func.min(EndpointGrader.next_call_at)).where(EndpointGrader.next_call_at > now, grading))
    return (soonest - now).total_seconds() if soonest is not None else None


def _done(session: Session, grading: TextGrading, row: GradedText) -> bool:
    """The text is sent no more. Returns whether its grading is over."""
    row.done, row.prompt, row.reference, row.text = True, "", "", ""
    session.flush()
    grading.ended = session.scalars(select(_no_more()).where(GradedText.grading_id == grading.id)).one()
    return grading.ended


def _locked(session: Session, grading_id: str, place: int) -> tuple[TextGrading, GradedText] | None:
    """The text and before it its grading, as a deletion locks them; so of two texts that end at once one sees both."""
    grading = session.get(TextGrading, grading_id, with_for_update=True)
    row = session.get(GradedText, (grading_id, place), with_for_update=True) if grading is not None else None
    return (grading, row) if grading is not None and row is not None else None
