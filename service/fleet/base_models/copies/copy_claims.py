"""Copies of bases in their table: asked for, claimed, renewed, ended. Each step is a short transaction.

A base that changed meanwhile has another row, so a claim on the one before it changes nothing.
"""

from dataclasses import dataclass
from datetime import timedelta

from contract.messages.placement_messages import HUB_SCHEME, BaseFile
from service.database.claimed_rows import ClaimedRows
from service.database.engine import Database
from service.fleet.base_models.model_catalog import COPYING, FAILED, STORED, files_of
from service.fleet.models import BaseCopy, BaseModel
from service.http.problems import Problem, Unavailable

_CLAIMED = timedelta(minutes=4)  # longer than the hub may be silent, 30 s at each of its redirects
_COMMITTING = timedelta(minutes=15)  # a bucket copies a large object
_ROWS = ClaimedRows(BaseCopy, unended=COPYING, done=STORED, failed=FAILED, held=_CLAIMED)


@dataclass
class ClaimedCopy:
    """A base that this process copies, and the bytes of it that storage has."""

    base_model: str
    claim: str
    repository: str
    commit: str
    files: tuple[BaseFile, ...]
    received: int = 0


class CopyClaims:
    def __init__(self, db: Database) -> None:
        self._db = db

    def take(self) -> ClaimedCopy | None:
        """Claim the oldest due copy; None if nothing is due."""
        while True:
            with self._db.begin() as session:
                row = _ROWS.due(session)
                if row is None:
                    return None
                base = session.get_one(BaseModel, row.base_model)
                if base.commit is None:  # a service that knows no copies allowed a folder under this name
                    _ROWS.fail(session, row, Unavailable("It is no repository of the hub any more; add it again.").kept())
                    continue
                died = Unavailable("The process that copied it died each time; add the base again.")
                claim = _ROWS.take(session, row, died.kept())
                if claim is not None:
                    row.received_bytes = 0
                    files = tuple(BaseFile(path=f.path, sha256=f.sha256, bytes=f.bytes) for f in files_of(session, base.name))
                    return ClaimedCopy(base.name, claim, base.source.removeprefix(HUB_SCHEME), base.commit, files)

    def renew(self, claimed: ClaimedCopy, committing: bool = False) -> None:
        """Note the progress. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.base_model, claimed.claim, _COMMITTING if committing else None)
            row.received_bytes = claimed.received

    def note_stored(self, claimed: ClaimedCopy) -> None:
        """Note that storage has another file: attempts count from the last one. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.base_model, claimed.claim)
            row.received_bytes, row.attempts = claimed.received, 1

    def finish(self, claimed: ClaimedCopy) -> None:
        """From now on nodes fetch it from storage. Raises Lost."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.base_model, claimed.claim)
            row.received_bytes = claimed.received
            _ROWS.finish(session, row)

    def fail(self, claimed: ClaimedCopy, why: Problem, again: bool) -> None:
        """`again`: try it later, unless this was the last attempt."""
        with self._db.begin() as session:
            row = _ROWS.mine(session, claimed.base_model, claimed.claim)
            if row is None:
                return
            row.received_bytes = claimed.received
            if again:
                _ROWS.retry(session, row, why.kept())
            else:
                _ROWS.fail(session, row, why.kept())

    def release(self, claimed: ClaimedCopy) -> None:
        with self._db.begin() as session:
            _ROWS.release(session, claimed.base_model, claimed.claim)
