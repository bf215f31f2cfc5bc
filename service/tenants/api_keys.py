"""API keys: 256 random bits each; the database stores only their SHA-256. Knows no HTTP."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ARRAY, LargeBinary, any_, bindparam, func, select
from sqlalchemy.orm import Session

from service.database.engine import new_id
from service.database.prepared_statements import PreparedStatement
from service.tenants.models import ApiKey

_PREFIX = "mk_"


class Scope(StrEnum):
    READ = "read"  # read the tenant's resources
    WRITE = "write"  # create and change them
    ADMIN = "admin"  # manage the whole service's tenants, keys, models and nodes


@dataclass(frozen=True)
class Principal:
    """The authenticated caller: a tenant and its key's rights."""

    tenant_id: str
    key_id: str
    scopes: frozenset[Scope]
    requests_per_minute: int | None = None  # None: the settings' limit


@dataclass(frozen=True)
class KeyCheck:
    """The result of a key's lookup. An unknown, revoked or expired key has no principal."""

    principal: Principal | None
    reason: str = ""  # without a principal: unknown, revoked, expired or session_over
    seconds_left: float | None = None  # until the key expires


def mint_key(
    session: Session,
    tenant_id: str,
    name: str,
    scopes: tuple[Scope, ...],
    expires_at: datetime | None = None,
    requests_per_minute: int | None = None,
) -> tuple[ApiKey, str]:
    """Add a key to the tenant. Returns its row and the secret, which cannot be read again."""
    secret = _PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        hash=hash_of(secret),
        scopes=[s.value for s in Scope if s in scopes],
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
    )
    session.add(key)
    session.flush()
    session.refresh(key)
    return key, secret


def check_key(session: Session, secret: str) -> KeyCheck:
    """Look up the key of this secret. The database's clock decides expiry."""
    found = session.execute(_FIND.where(ApiKey.hash == hash_of(secret))).one_or_none()
    return UNKNOWN if found is None else key_check(found, found.key_left)


def key_check(key: Any, seconds_left: Any) -> KeyCheck:
    """The check of a key that exists. `key` has an ApiKey's columns; `seconds_left` until it expires (None: never)."""
    left = None if seconds_left is None else float(seconds_left)
    if key.revoked_at is not None:
        return KeyCheck(None, "revoked")
    if left is not None and left <= 0:
        return KeyCheck(None, "expired")
    scopes = frozenset(Scope(s) for s in key.scopes)
    principal = Principal(key.tenant_id, key.id, scopes, key.requests_per_minute)
    return KeyCheck(principal, seconds_left=left)


def hash_of(secret: str) -> bytes:
    """The stored hash, a plain SHA-256: with 256 random bits no slow password hash is needed."""
    return hashlib.sha256(secret.encode()).digest()


_OF_KEY = (ApiKey.id, ApiKey.tenant_id, ApiKey.scopes, ApiKey.revoked_at, ApiKey.requests_per_minute)
CHECKED = (*_OF_KEY, func.extract("epoch", ApiKey.expires_at - func.clock_timestamp()).label("key_left"))
HASHES = any_(bindparam("hashes", type_=ARRAY(LargeBinary)))
_FIND = select(*CHECKED)
CHECK_KEYS = PreparedStatement(select(ApiKey.hash, *CHECKED).where(ApiKey.hash == HASHES))
UNKNOWN = KeyCheck(None, "unknown")
