"""API keys: 256 random bits that a tenant's people carry, kept here as a SHA-256 alone. Knows no HTTP."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.database.engine import new_id
from service.tenants.models import ApiKey

_PREFIX = "mk_"


class Scope(StrEnum):
    READ = "read"  # see the tenant's things
    WRITE = "write"  # make and change them
    ADMIN = "admin"  # tenants, keys, models and nodes of the whole service


@dataclass(frozen=True)
class Principal:
    """Who calls: a tenant, and what its key may do."""

    tenant_id: str
    key_id: str
    scopes: frozenset[Scope]
    requests_per_minute: int | None = None  # None: what the settings say


@dataclass(frozen=True)
class KeyCheck:
    """What was found under a secret. A key that is revoked or expired has no principal."""

    principal: Principal | None
    reason: str = ""  # why there is none: unknown, revoked or expired
    seconds_left: float | None = None  # until the key expires


def mint_key(
    session: Session,
    tenant_id: str,
    name: str,
    scopes: tuple[Scope, ...],
    expires_at: datetime | None = None,
    requests_per_minute: int | None = None,
) -> tuple[ApiKey, str]:
    """Add a key to the tenant. Returns its row and the secret, which nobody can read again."""
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
    """Find the key of this secret. Expiry is judged by the database's clock."""
    left = func.extract("epoch", ApiKey.expires_at - func.clock_timestamp()).label("left")
    found = session.execute(select(ApiKey, left).where(ApiKey.hash == hash_of(secret))).one_or_none()
    if found is None:
        return KeyCheck(None, "unknown")
    key = found.ApiKey
    if key.revoked_at is not None:
        return KeyCheck(None, "revoked")
    left_seconds = None if found.left is None else float(found.left)
    if left_seconds is not None and left_seconds <= 0:
        return KeyCheck(None, "expired")
    scopes = frozenset(Scope(s) for s in key.scopes)
    principal = Principal(key.tenant_id, key.id, scopes, key.requests_per_minute)
    return KeyCheck(principal, seconds_left=left_seconds)


def hash_of(secret: str) -> bytes:
    """What is stored of a secret. It has 256 random bits, so nothing slower is needed."""
    return hashlib.sha256(secret.encode()).digest()
