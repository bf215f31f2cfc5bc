"""Audit trail: writes a request's audit entry in the same transaction as its change. Knows no routes by name.

A request has one `Note` for each database handle that it takes (`Db`, `AdminDb`), and a submission one for its coalesced
transaction. Each writing transaction of a handle adds an entry of its own; one that wrote nothing adds none, unless its note
has `reading` set.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, text
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction

from service.database.engine import new_id
from service.database.prepared_statements import PreparedStatement
from service.tenants.api_keys import Principal

_MOST = 20  # targets per entry
_LONGEST = 255  # characters of a target
_MEMBERS = ("id", "tenant_id", "key_id", "action", "targets", "request_id", "user_id", "actor")
_NOTE = "note"  # key of the session's Note in session.info
_ADD = PreparedStatement(
    text(
        f"""INSERT INTO audit_entries ({", ".join(_MEMBERS)}) SELECT {", ".join(_MEMBERS)}
        FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS entry(id varchar, tenant_id varchar, key_id varchar, action varchar,
            targets varchar[], request_id varchar, user_id varchar, actor varchar)"""
    )
)


@dataclass
class Note:
    """What the audit entries of one database handle of a request say: caller, action, targets. `reading`: add an entry even if
    nothing is written."""

    principal: Principal
    action: str
    targets: list[str]
    request_id: str
    reading: bool = False
    _created: list[str] = field(default_factory=list)
    _wrote: bool = False

    def attach(self, session: Session) -> None:
        """Listen to the session's writes."""
        self.reset()
        session.info[_NOTE] = self
        event.listen(session, "after_flush", self._flushed)
        event.listen(session, "do_orm_execute", self._executes)

    def reset(self) -> None:
        """Forget what an earlier transaction of the request wrote."""
        self._created, self._wrote = [], False

    def write_entry(self, session: Session) -> None:
        """Add the entry, if any, before the session commits."""
        session.flush()
        add_entries(session, [self])

    def add_created(self, id: str) -> None:
        """Record a row that a plain statement created; `attach` already records rows that the session adds."""
        self._wrote = True
        self._created.append(id)

    def entry(self) -> dict[str, object] | None:
        """The audit entry's columns; None if there is nothing to record."""
        if not self._wrote and not self.reading:
            return None
        targets = [target[:_LONGEST] for target in dict.fromkeys([*self.targets, *self._created])][:_MOST]
        return {
            "id": new_id("audit"),
            "tenant_id": self.principal.tenant_id,
            "key_id": self.principal.key_id,
            "action": self.action,
            "targets": targets,
            "request_id": self.request_id,
            "user_id": self.principal.user_id,
            "actor": self.principal.holder.label if self.principal.holder else None,
        }

    def _flushed(self, session: Session, context: UOWTransaction) -> None:
        if session.new or session.dirty or session.deleted:
            self._wrote = True
        ids: list[Any] = [getattr(row, "id", None) for row in session.new]
        self._created += [id for id in ids if isinstance(id, str)]

    def _executes(self, state: ORMExecuteState) -> None:
        if state.is_insert or state.is_update or state.is_delete:
            self._wrote = True


def add_entries(session: Session, notes: Iterable[Note]) -> None:
    """Add the entries of all requests that share this transaction, in one statement."""
    entries = [entry for note in notes if (entry := note.entry()) is not None]
    if entries:
        _ADD.run(session.connection(), {"entries": json.dumps(entries)})


def note_created(session: Session, id: str) -> None:
    """Record in the session's note, if any, a row that a plain statement created."""
    note: Note | None = session.info.get(_NOTE)
    if note is not None:
        note.add_created(id)
