"""Imports in their table: claimed, renewed, ended. Each step is a short transaction; a claim that was lost changes nothing."""

import json
import secrets
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.database.engine import Database, clock
from service.files import actions as files
from service.files.dataset_intake import CheckedDataSet
from service.files.imports.actions import FAILED, IMPORTING, READY
from service.files.imports.sources import Pins
from service.files.models import FileImport
from service.http.problems import Problem, Unavailable
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal
from service.usage.quotas import admit_bytes

_CLAIMED = timedelta(minutes=2)  # longer than a source may be silent
_COMMITTING = timedelta(minutes=15)  # a bucket copies a large object
WAITS = tuple(timedelta(seconds=s) for s in (10, 60, 300, 900))  # before the second, third, ... attempt
ATTEMPTS = len(WAITS) + 1


class Lost(Exception):
    """The import was deleted, or its claim ran out and another importer has it."""


@dataclass
class Claimed:
    """An import that this process fetches, and the bytes that have arrived."""

    id: str
    tenant_id: str
    claim: str
    source: str
    pins: Pins
    total: int | None
    attempts: int
    sealed: bytes
    received: int = 0


class Claims:
    """`box` opens what is sealed in the rows."""

    def __init__(self, db: Database, box: SecretBox) -> None:
        self._db, self._box = db, box

    def opened(self, claimed: Claimed) -> tuple[str, str, str]:
        """URL, token, and the origin that is trusted. Raises Unsealable."""
        said = json.loads(self._box.open(claimed.sealed))
        return said["url"], said["token"], said["trusted"]

    def take(self) -> Claimed | None:
        """Claim the oldest due import, of a tenant that has none running if there is one; None if nothing is due."""
        while True:
            with self._db.begin() as session:
                row = _due(session)
                if row is None:
                    return None
                if row.attempts < ATTEMPTS:
                    row.claim, row.claimed_until = secrets.token_hex(16), clock(session) + _CLAIMED
                    row.attempts, row.received_bytes = row.attempts + 1, 0
                    return Claimed(
                        row.id,
                        row.tenant_id,
                        row.claim,
                        row.source,
                        Pins(**row.pins),
                        row.total_bytes,
                        row.attempts,
                        row.sealed or b"",
                    )
                died = Unavailable("The process that fetched it died each time; import it again, or upload it.")
                _end(session, row, FAILED, died)

    def renew(self, claimed: Claimed, committing: bool = False) -> None:
        """Note the progress, and reserve what has come beyond the announced size. Raises Lost, QuotaExceeded."""
        with self._db.begin() as session:
            row = _own(session, claimed)
            if claimed.received > row.reserved_bytes:
                admit_bytes(session, _owner(row), claimed.received - row.reserved_bytes)
                row.reserved_bytes = claimed.received
            row.received_bytes = claimed.received
            row.claimed_until = clock(session) + (_COMMITTING if committing else _CLAIMED)

    def finish(self, claimed: Claimed, data: CheckedDataSet) -> None:
        """Make it a file. Raises Lost, QuotaExceeded."""
        with self._db.begin() as session:
            row = _own(session, claimed)
            row.received_bytes = claimed.received
            _end(session, row, READY, None)
            session.flush()  # what it reserved is free from here on
            files.keep(session, _owner(row), row.name, data, id=row.id)

    def fail(self, claimed: Claimed, why: Problem) -> None:
        with self._db.begin() as session:
            row = _mine(session, claimed)
            if row is not None:
                row.received_bytes = claimed.received
                _end(session, row, FAILED, why)

    def retry(self, claimed: Claimed, why: Problem) -> None:
        """Try it again later, or fail it after the last attempt."""
        if claimed.attempts >= ATTEMPTS:
            self.fail(claimed, why)
            return
        with self._db.begin() as session:
            row = _mine(session, claimed)
            if row is not None:
                row.error, row.claim, row.claimed_until = _said(why), None, None
                row.next_at = clock(session) + WAITS[claimed.attempts - 1]

    def release(self, claimed: Claimed) -> None:
        """Give it back as it was, for another process."""
        with self._db.begin() as session:
            row = _mine(session, claimed)
            if row is not None:
                row.claim, row.claimed_until, row.attempts = None, None, row.attempts - 1


def _due(session: Session) -> FileImport | None:
    now = clock(session)
    running = select(FileImport.tenant_id).where(FileImport.status == IMPORTING, FileImport.claimed_until >= now)
    free = or_(FileImport.claimed_until.is_(None), FileImport.claimed_until < now)
    due = select(FileImport).where(FileImport.status == IMPORTING, FileImport.next_at <= now, free)
    first = due.order_by(FileImport.tenant_id.in_(running), FileImport.next_at, FileImport.id).limit(1)
    return session.scalar(first.with_for_update(skip_locked=True))


def _mine(session: Session, claimed: Claimed) -> FileImport | None:
    held = select(FileImport).where(FileImport.id == claimed.id, FileImport.claim == claimed.claim)
    return session.scalar(held.where(FileImport.status == IMPORTING).with_for_update())


def _own(session: Session, claimed: Claimed) -> FileImport:
    row = _mine(session, claimed)
    if row is None:
        raise Lost
    return row


def _end(session: Session, row: FileImport, status: str, why: Problem | None) -> None:
    """It ends for good: its secrets are deleted, and nobody has a claim on it."""
    row.status, row.sealed, row.claim, row.claimed_until = status, None, None, None
    row.error, row.ended_at = None if why is None else _said(why), clock(session)


def _said(why: Problem) -> dict[str, object]:
    body = why.body(None)
    return {name: body[name] for name in ("code", "detail", "errors", "error_count") if name in body}


def _owner(row: FileImport) -> Principal:
    return Principal(row.tenant_id, "", frozenset())
