"""Writes a request's audit entry in the very transaction that did what it tells of. Knows no routes by name.

A transaction that wrote nothing leaves no entry, unless what it read is worth one. A request that writes in two leaves two.
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, event, insert
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction

from service.audit.models import AuditEntry
from service.db import new_id
from service.plain import Plain
from service.tenants.keys import Principal

_MOST = 20  # targets
_LONGEST = 255
_MEMBERS = ("id", "tenant_id", "key_id", "action", "targets", "request_id")
_NOTE = "note"  # where a session keeps its own
_ADD = Plain(insert(AuditEntry).values({name: bindparam(name) for name in _MEMBERS}))


@dataclass
class Note:
    """One request: who, what, upon what. `reading`: note it even if it writes nothing."""

    principal: Principal
    action: str
    targets: list[str]
    request_id: str
    reading: bool = False
    _made: list[str] = field(default_factory=list)
    _wrote: bool = False

    def open(self, session: Session) -> None:
        """Watch what the session writes."""
        self._made, self._wrote = [], False
        session.info[_NOTE] = self
        event.listen(session, "after_flush", self._flushed)
        event.listen(session, "do_orm_execute", self._executes)

    def close(self, session: Session) -> None:
        """Add the entry, if there is something to tell, before the session commits."""
        session.flush()
        if not self._wrote and not self.reading:
            return
        targets = [target[:_LONGEST] for target in dict.fromkeys([*self.targets, *self._made])][:_MOST]
        entry: dict[str, object] = {"id": new_id("audit"), "tenant_id": self.principal.tenant_id}
        entry |= {"key_id": self.principal.key_id, "action": self.action, "targets": targets, "request_id": self.request_id}
        _ADD.run(session.connection(), entry)

    def made(self, id: str) -> None:
        self._wrote = True
        self._made.append(id)

    def _flushed(self, session: Session, context: UOWTransaction) -> None:
        if session.new or session.dirty or session.deleted:
            self._wrote = True
        ids: list[Any] = [getattr(made, "id", None) for made in session.new]
        self._made += [id for id in ids if isinstance(id, str)]

    def _executes(self, state: ORMExecuteState) -> None:
        if state.is_insert or state.is_update or state.is_delete:
            self._wrote = True


def note_made(session: Session, id: str) -> None:
    """Say that a statement made this row: of what the session itself adds, its note knows."""
    note: Note | None = session.info.get(_NOTE)
    if note is not None:
        note.made(id)
