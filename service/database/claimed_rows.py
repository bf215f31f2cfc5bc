"""Rows that background processes claim and work off, with pauses between attempts. Knows no tables and no work.

Every method belongs into a short transaction. A claim lasts until `claimed_until` and is renewed by its holder; once it has run
out another process takes the row, and what the first one still says of it changes nothing.
"""

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import LargeBinary, String, func, inspect, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, Session, mapped_column

from contract.compatibility.lenient_documents import why_unreadable
from service.database.engine import At, Id, Now, clock

WAITS = tuple(timedelta(seconds=s) for s in (10, 60, 300, 900))  # before the second, third, ... attempt
ATTEMPTS = len(WAITS) + 1
_TURNS = 3  # apart from the advisory locks of files and tenants


class Lost(Exception):
    """The row was deleted, or its claim ran out and another process has it."""


class ClaimedRow:
    """The columns of such a table, beside a primary key of one column."""

    status: Mapped[str] = mapped_column(String(16))
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    next_at: Mapped[Now]  # not tried before
    claim: Mapped[str | None] = mapped_column(String(32))
    claimed_until: Mapped[At | None]
    error: Mapped[dict[str, object] | None] = mapped_column(JSONB(none_as_null=True))  # of the last attempt; read by last_error
    created_at: Mapped[Now]
    ended_at: Mapped[At | None]


class TenantsRow(ClaimedRow):
    """One that a tenant asked for. `sealed`: what the work needs and nobody may read, encrypted; null from the end on."""

    id: Mapped[Id]
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary)

    if TYPE_CHECKING:
        tenant_id: Mapped[str]


Row = TypeVar("Row", bound=ClaimedRow)
Error = TypeVar("Error", bound=BaseModel)


def last_error(row: ClaimedRow, shown: type[Error]) -> Error | None:
    """Why the row's last attempt failed, as `shown`, whose `code` and `detail` say so where that cannot be read."""
    if row.error is None:
        return None
    try:
        return shown.model_validate(row.error)
    except ValidationError as error:
        table: Any = inspect(type(row)).local_table
        why = f"Why its last attempt failed cannot be read ({table.name}.error: {why_unreadable(error)})."
        return shown.model_validate({"code": "unreadable", "detail": why})


class ClaimedRows(Generic[Row]):
    """The rows of `model` that have not ended: those of status `unended`, which become `done` or `failed`. `held`: how long a
    claim lasts unless renewed."""

    def __init__(self, model: type[Row], *, unended: str, done: str, failed: str, held: timedelta) -> None:
        self._model: Any = model  # mypy reads a mixin's columns as instances
        (self._key,) = inspect(model).primary_key
        self._unended, self._done, self._failed, self._held = unended, done, failed, held

    def due(self, session: Session, one_a_tenant: bool = False) -> Row | None:
        """The oldest row that is due, locked; of a tenant that has none claimed if there is one (`one_a_tenant`: else none)."""
        if one_a_tenant:  # claims take turns, so that each sees what the one before has claimed
            table = self._model.__tablename__
            session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(table, _TURNS))))
        now, row = clock(session), self._model
        free = or_(row.claimed_until.is_(None), row.claimed_until < now)
        due, order = select(row).where(row.status == self._unended, row.next_at <= now, free), [row.next_at, self._key]
        if issubclass(row, TenantsRow):
            running = select(row.tenant_id).where(row.status == self._unended, row.claimed_until >= now)
            order = [row.tenant_id.in_(running), *order]
            due = due.where(row.tenant_id.not_in(running)) if one_a_tenant else due
        found: Row | None = session.scalar(due.order_by(*order).limit(1).with_for_update(skip_locked=True))
        return found

    def take(self, session: Session, row: Row, died: Mapping[str, object]) -> str | None:
        """Claim a due row, for its next attempt; the claim. None where the process died at all its attempts: it fails, with the
        error `died`."""
        if row.attempts >= ATTEMPTS:
            self.fail(session, row, died)
            return None
        row.claim, row.claimed_until = secrets.token_hex(16), clock(session) + self._held
        row.attempts += 1
        return row.claim

    def mine(self, session: Session, id: str, claim: str) -> Row | None:
        """The row under this claim, locked; None where that is over."""
        row = self._model
        held = select(row).where(self._key == id, row.claim == claim, row.status == self._unended)
        found: Row | None = session.scalar(held.with_for_update())
        return found

    def own(self, session: Session, id: str, claim: str, renewed: timedelta | None = None) -> Row:
        """The row under this claim, which is renewed (for `renewed`, if that is given). Raises Lost."""
        row = self.mine(session, id, claim)
        if row is None:
            raise Lost
        row.claimed_until = clock(session) + (renewed or self._held)
        return row

    def retry(self, session: Session, row: Row, error: Mapping[str, object]) -> None:
        """Give it back to be tried again after a pause, or fail it after its last attempt."""
        if row.attempts >= ATTEMPTS:
            self.fail(session, row, error)
            return
        row.error, row.claim, row.claimed_until = dict(error), None, None
        row.next_at = clock(session) + WAITS[min(max(row.attempts, 1), len(WAITS)) - 1]

    def release(self, session: Session, id: str, claim: str) -> None:
        """Give it back as it was, for another process; nothing where the claim is over."""
        row = self.mine(session, id, claim)
        if row is not None:
            row.claim, row.claimed_until, row.attempts = None, None, max(0, row.attempts - 1)

    def finish(self, session: Session, row: Row) -> None:
        """Its work is done."""
        self._end(session, row, self._done, None)

    def fail(self, session: Session, row: Row, error: Mapping[str, object]) -> None:
        """It is tried no more."""
        self._end(session, row, self._failed, error)

    def _end(self, session: Session, row: Row, status: str, error: Mapping[str, object] | None) -> None:
        """It ends for good: its secrets are deleted, and nobody has a claim on it."""
        row.status, row.claim, row.claimed_until = status, None, None
        if isinstance(row, TenantsRow):
            row.sealed = None
        row.error, row.ended_at = None if error is None else dict(error), clock(session)
