"""Stores answers under Idempotency-Keys, in the transaction that makes the change: after a crash both exist or neither.

Knows no HTTP.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, TypeAdapter
from sqlalchemy import ForeignKey, LargeBinary, String, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from service.database.checked_json import ParsedJson, ResultUnreadable, UnreadValue, required
from service.database.engine import Base, Database, Now, new_id
from service.database.prepared_statements import PreparedStatement
from service.http.problem_handlers import ValueUnreadable
from service.http.problems import Conflict, Invalid
from service.secret_box import SecretBox, Unsealable
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import scoped

log = logging.getLogger(__name__)

KEPT = timedelta(hours=24)
_SEALED = "sealed"  # the only field of a stored body that is encrypted
_ABANDONED = timedelta(seconds=60)  # no request runs that long, so the process of an older claim died
_CLAIM = PreparedStatement(
    text(
        """INSERT INTO idempotency_keys AS taken (tenant_id, key, fingerprint, token)
        VALUES (:tenant, :key, :fingerprint, :token)
        ON CONFLICT (tenant_id, key) DO UPDATE SET token = excluded.token, claimed_at = clock_timestamp(),
            fingerprint = excluded.fingerprint, status = NULL, headers = NULL, body = NULL
        WHERE taken.claimed_at < clock_timestamp() - CAST(:kept AS interval)
            OR (taken.status IS NULL AND taken.fingerprint = excluded.fingerprint
                AND taken.claimed_at < clock_timestamp() - CAST(:abandoned AS interval))
        RETURNING token"""
    )
)
_MINE = "WHERE tenant_id = :tenant AND key = :key AND token = :token"
_STORE = PreparedStatement(
    text(
        f"""UPDATE idempotency_keys SET status = :status, body = CAST(:body AS jsonb), headers = CAST(:headers AS jsonb)
        {_MINE} RETURNING key"""
    )
)
_RELEASE = PreparedStatement(text(f"DELETE FROM idempotency_keys {_MINE} AND status IS NULL"))


class StoredAnswer(Base):
    """The answer under a key. Without a status the request is still in flight."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary)  # sha256 of method, path and body
    token: Mapped[str] = mapped_column(String(40))  # of the request that claimed the key
    claimed_at: Mapped[Now]
    status: Mapped[int | None]
    headers: Mapped[dict[str, str] | UnreadValue | None] = mapped_column(
        ParsedJson(TypeAdapter(dict[str, str]), "headers (idempotency_keys.headers)", none_as_null=True)
    )
    body: Mapped[dict[str, Any] | UnreadValue | None] = mapped_column(
        ParsedJson(TypeAdapter(dict[str, Any]), "answer (idempotency_keys.body)", none_as_null=True)
    )


class KeyReused(Invalid):
    code, title = "idempotency_key_reused", "The key belongs to another request"


class InFlight(Conflict):
    code, title = "idempotency_in_flight", "The first request under this key is still being processed"

    def __init__(self) -> None:
        super().__init__("The first request under this Idempotency-Key has no answer yet.", headers={"Retry-After": "1"})


class Replayed(Exception):
    """The key has a stored answer, which the caller gets again."""

    def __init__(self, answer: StoredAnswer) -> None:
        """Raises ResultUnreadable."""
        super().__init__("answered before")
        # copied now: the handler runs after the session is closed
        self.status, self.body, headers = answer.status or 200, required(answer.body), required(answer.headers)
        self.headers = dict(headers or {})


@dataclass
class Claim:
    """One request's claim on its key; without a key it stores nothing."""

    tenant_id: str
    key: str | None
    token: str
    answer_stored: bool = False

    def store_answer(
        self, session: Session, status: int, body: BaseModel, headers: Mapping[str, str], box: SecretBox | None = None
    ) -> None:
        """Store the answer in the transaction that makes the change. Raises InFlight if another request took over.

        `box` encrypts a body that holds a credential, which is otherwise stored as a hash.
        """
        if self.key is None:
            return
        said = body.model_dump_json()
        if box is not None:
            said = json.dumps({_SEALED: box.seal(said).decode()})
        answer = {"status": status, "body": said, "headers": json.dumps(dict(headers))}
        if not _STORE.run(session.connection(), self._mine | answer):
            raise InFlight
        self.answer_stored = True

    def release(self, db: Database) -> None:
        with db.begin() as session:
            self.release_in(session)

    def release_in(self, session: Session) -> None:
        """Free the key of a request that was refused."""
        _RELEASE.run(session.connection(), self._mine)

    @property
    def _mine(self) -> dict[str, str | None]:
        return {"tenant": self.tenant_id, "key": self.key, "token": self.token}


def opened(body: dict[str, Any] | None, box: SecretBox) -> dict[str, Any] | None:
    """A stored body, decrypted. Raises ValueUnreadable."""
    if body is not None and body.keys() == {_SEALED}:
        try:
            whole: dict[str, Any] = json.loads(box.open(str(body[_SEALED]).encode()))
        except Unsealable as error:
            raise _unreadable(error) from None
        return whole
    return body


def _unreadable(why: ValueError) -> ValueUnreadable:
    return ValueUnreadable(
        f"The request under this Idempotency-Key has taken effect, but its answer is not told again: {why}. Look for what it "
        "made; under another key the request would make it once more."
    )


@dataclass(frozen=True)
class KeyedRequest:
    """A request's key, and the sha256 of its method, path and body."""

    key: str
    fingerprint: bytes


def claim(db: Database, principal: Principal, key: str, fingerprint: bytes) -> Claim:
    """As `claim_in`, in a transaction of its own: the key is taken before its request takes effect."""
    with db.begin() as session:
        return claim_in(session, principal, KeyedRequest(key, fingerprint))


def claim_in(session: Session, principal: Principal, request: KeyedRequest) -> Claim:
    """Claim the key for the request. Raises Replayed if the key has an answer, ValueUnreadable if that cannot be read,
    KeyReused if it belongs to another request, InFlight if its first request has no answer yet.

    Waits for another transaction that claims the same key. One that claims several takes them in order, or two could deadlock.
    """
    key, fingerprint, token = request.key, request.fingerprint, new_id("claim")
    asked = {"tenant": principal.tenant_id, "key": key, "fingerprint": fingerprint, "token": token}
    if _CLAIM.run(session.connection(), asked | {"abandoned": _ABANDONED, "kept": KEPT}):
        return Claim(principal.tenant_id, key, token)
    answer = session.scalar(scoped(select(StoredAnswer).where(StoredAnswer.key == key), StoredAnswer, principal))
    if answer is None:
        raise InFlight  # the first request was refused just now; the next try finds the key free
    if answer.fingerprint != fingerprint:
        raise KeyReused([], "This Idempotency-Key was used for another request within a day; choose a new key for this one.")
    if answer.status is None:
        raise InFlight
    try:
        raise Replayed(answer)
    except ResultUnreadable as error:
        log.error("the answer under the Idempotency-Key %s of tenant %s: %s", key, principal.tenant_id, error)
        raise _unreadable(error) from None


def answered(db: Database, principal: Principal, key: str) -> bool:
    """Whether the key has a stored answer, so that its request has taken effect."""
    with db.begin() as session:
        answer_stored = scoped(
            select(StoredAnswer.key).where(StoredAnswer.key == key, StoredAnswer.status.is_not(None)), StoredAnswer, principal
        )
        return session.scalar(answer_stored) is not None
