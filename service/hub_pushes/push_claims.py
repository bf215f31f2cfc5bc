"""Pushes in their table: claimed, renewed, ended. Each step is a short transaction; a claim that was lost changes nothing."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from contract.messages.adapter_manifest import AdapterFile
from service.database.checked_json import UnreadValue
from service.database.claimed_rows import ClaimedRows
from service.database.engine import Database
from service.http.problem_handlers import ValueUnreadable
from service.http.problems import Problem, Unavailable
from service.hub_pushes.models import FAILED, OPEN, SUCCEEDED, HubPush

log = logging.getLogger(__name__)

HELD = timedelta(minutes=5)  # longer than a hub may be silent, and than any request that sends no large file
_ROWS = ClaimedRows(HubPush, unended=OPEN, done=SUCCEEDED, failed=FAILED, held=HELD)


@dataclass
class ClaimedPush:
    """A push that this process works on. sent: bytes of its files that the hub has."""

    id: str
    claim: str
    endpoint: str
    repository: str
    branch: str
    private: bool
    message: str
    files: Sequence[AdapterFile]
    parent: str | None
    committing: bool
    sealed: bytes = field(repr=False)
    sent: int = 0


class PushClaims:
    def __init__(self, db: Database) -> None:
        self._db = db

    def take(self) -> ClaimedPush | None:
        """Claim the oldest due push of a tenant that has none claimed; None if nothing is due."""
        while True:
            with self._db.begin() as session:
                row = _ROWS.due(session, one_a_tenant=True)
                if row is None:
                    return None
                if isinstance(row.files, UnreadValue):
                    log.error("push %s fails: %s", row.id, row.files.why)
                    _ROWS.fail(session, row, error_of(ValueUnreadable(f"{row.id}: {row.files.why}; push it again.")))
                    continue
                died = Unavailable("The process that pushed it died each time; push it again.")
                claim = _ROWS.take(session, row, error_of(died))
            if claim is not None:
                return _claimed(row, row.files, claim)

    def renew(self, claimed: ClaimedPush) -> None:
        """Note the progress. Raises Lost."""
        with self._db.begin() as session:
            _ROWS.own(session, claimed.id, claimed.claim).sent_bytes = claimed.sent

    def note_stored(self, claimed: ClaimedPush) -> None:
        """Note that the hub has another file: attempts count from the last one. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.id, claimed.claim)
            row.sent_bytes, row.attempts = claimed.sent, 1

    def note_commit(self, claimed: ClaimedPush, parent: str | None) -> None:
        """Note that a commit onto `parent` is about to be sent. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.id, claimed.claim)
            row.parent, row.committing = parent, True
        claimed.parent, claimed.committing = parent, True

    def finish(self, claimed: ClaimedPush, commit: str) -> None:
        """The hub has it, as of this commit. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.id, claimed.claim)
            row.commit, row.sent_bytes = commit, row.bytes
            _ROWS.finish(session, row)

    def fail(self, claimed: ClaimedPush, why: Problem) -> None:
        with self._db.begin() as session:
            row = _ROWS.mine(session, claimed.id, claimed.claim)
            if row is not None:
                row.sent_bytes = claimed.sent
                _ROWS.fail(session, row, error_of(why))

    def retry(self, claimed: ClaimedPush, why: Problem) -> None:
        """Try it again later, or fail it after the last attempt."""
        with self._db.begin() as session:
            row = _ROWS.mine(session, claimed.id, claimed.claim)
            if row is not None:
                row.sent_bytes = claimed.sent
                _ROWS.retry(session, row, error_of(why))

    def release(self, claimed: ClaimedPush) -> None:
        """Give it back as it was, for another process."""
        with self._db.begin() as session:
            _ROWS.release(session, claimed.id, claimed.claim)


def error_of(why: Problem) -> dict[str, object]:
    """What the row tells of a failure."""
    return {"code": why.code, "detail": why.detail}


def _claimed(row: HubPush, files: Sequence[AdapterFile], claim: str) -> ClaimedPush:
    return ClaimedPush(
        id=row.id,
        claim=claim,
        endpoint=row.endpoint,
        repository=row.repository,
        branch=row.revision,
        private=row.private,
        message=row.message,
        files=files,
        parent=row.parent,
        committing=row.committing,
        sealed=row.sealed or b"",
    )
