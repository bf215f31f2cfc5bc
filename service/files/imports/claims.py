"""Imports in their table: claimed, renewed, ended. Each step is a short transaction; a claim that was lost changes nothing."""

import json
import logging
from dataclasses import dataclass, field
from datetime import timedelta

from service.database.checked_json import UnreadValue
from service.database.claimed_rows import ClaimedRows
from service.database.engine import Database
from service.files import actions as files
from service.files.dataset_intake import CheckedDataSet
from service.files.imports.actions import FAILED, IMPORTING, READY
from service.files.imports.s3_object import S3Object
from service.files.models import FileImport, Pins
from service.http.problem_handlers import ValueUnreadable
from service.http.problems import Problem, Unavailable
from service.secret_box import SecretBox
from service.tenants.api_keys import Principal
from service.usage.quotas import admit_bytes

log = logging.getLogger(__name__)

_CLAIMED = timedelta(minutes=4)  # longer than a source may be silent, 30 s at each of its redirects
_COMMITTING = timedelta(minutes=15)  # a bucket copies a large object
_ROWS = ClaimedRows(FileImport, unended=IMPORTING, done=READY, failed=FAILED, held=_CLAIMED)


@dataclass
class Claimed:
    """An import that this process fetches, and the bytes that have arrived."""

    id: str
    tenant_id: str
    claim: str
    source: str
    pins: Pins
    total: int | None
    sealed: bytes = field(repr=False)
    received: int = 0


class Claims:
    """`box` opens what is sealed in the rows."""

    def __init__(self, db: Database, box: SecretBox) -> None:
        self._db, self._box = db, box

    def opened(self, claimed: Claimed, seconds: float) -> tuple[str, str, str]:
        """URL, token, and the origin that is trusted; the URL of an object in a bucket is signed for so many seconds. Raises
        Unsealable."""
        said = json.loads(self._box.open(claimed.sealed))
        url = S3Object(**said["bucket"]).url(seconds) if said.get("bucket") is not None else said["url"]
        return url, said["token"], said["trusted"]

    def take(self) -> Claimed | None:
        """Claim the oldest due import, of a tenant that has none running if there is one; None if nothing is due."""
        while True:
            with self._db.begin() as session:
                row = _ROWS.due(session)
                if row is None:
                    return None
                if isinstance(row.pins, UnreadValue):
                    log.error("import %s fails: %s", row.id, row.pins.why)
                    why = f"{row.id}: {row.pins.why}; import it again, or upload it."
                    _ROWS.fail(session, row, ValueUnreadable(why).kept())
                    continue
                died = Unavailable("The process that fetched it died each time; import it again, or upload it.")
                claim = _ROWS.take(session, row, died.kept())
                if claim is not None:
                    row.received_bytes = 0
            if claim is not None:
                return _claimed(row, row.pins, claim)

    def renew(self, claimed: Claimed, committing: bool = False) -> None:
        """Note the progress, and reserve what has come beyond the announced size. Raises Lost, QuotaExceeded."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.id, claimed.claim, _COMMITTING if committing else None)
            if claimed.received > row.reserved_bytes:
                admit_bytes(session, _owner(row), claimed.received - row.reserved_bytes)
                row.reserved_bytes = claimed.received
            row.received_bytes = claimed.received

    def finish(self, claimed: Claimed, data: CheckedDataSet) -> None:
        """Make it a file. Raises Lost, QuotaExceeded."""
        with self._db.begin() as session:
            row = _ROWS.own(session, claimed.id, claimed.claim)
            row.received_bytes = claimed.received
            _ROWS.finish(session, row)
            session.flush()  # what it reserved is free from here on
            files.keep(session, _owner(row), row.name, data, id=row.id)

    def fail(self, claimed: Claimed, why: Problem) -> None:
        with self._db.begin() as session:
            row = _ROWS.mine(session, claimed.id, claimed.claim)
            if row is not None:
                row.received_bytes = claimed.received
                _ROWS.fail(session, row, why.kept())

    def retry(self, claimed: Claimed, why: Problem) -> None:
        """Try it again later, or fail it after the last attempt."""
        with self._db.begin() as session:
            row = _ROWS.mine(session, claimed.id, claimed.claim)
            if row is not None:
                row.received_bytes = claimed.received
                _ROWS.retry(session, row, why.kept())

    def release(self, claimed: Claimed) -> None:
        """Give it back as it was, for another process."""
        with self._db.begin() as session:
            _ROWS.release(session, claimed.id, claimed.claim)


def _claimed(row: FileImport, pins: Pins, claim: str) -> Claimed:
    return Claimed(
        id=row.id,
        tenant_id=row.tenant_id,
        claim=claim,
        source=row.source,
        pins=pins,
        total=row.total_bytes,
        sealed=row.sealed or b"",
    )


def _owner(row: FileImport) -> Principal:
    return Principal(row.tenant_id, "", frozenset())
