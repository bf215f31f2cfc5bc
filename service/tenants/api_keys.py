"""API keys: 256 random bits each; the database stores only their SHA-256. Knows no HTTP."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, LargeBinary, and_, any_, bindparam, func, literal, select
from sqlalchemy.orm import Session

from service.database.engine import CHANNEL, new_id
from service.database.prepared_statements import PreparedStatement
from service.tenants.member_roles import Role, lower, scopes_of
from service.tenants.member_roles import Scope as Scope
from service.tenants.models import ApiKey, Membership, ServiceAccount, User

_PREFIX = "mk_"
RIGHTS_CHANGED = "rights_changed"  # a notice on CHANNEL, where others name tasks


@dataclass(frozen=True)
class Holder:
    """The member or service account that a key belongs to. `role`: the lower one of the key's and the holder's present one."""

    role: Role
    label: str  # how the audit log names them
    user_id: str | None = None
    service_account_id: str | None = None


@dataclass(frozen=True)
class Principal:
    """The authenticated caller: a tenant and its key's rights. A key without a holder belongs to the tenant alone."""

    tenant_id: str
    key_id: str
    scopes: frozenset[Scope]
    requests_per_minute: int | None = None  # None: the settings' limit
    holder: Holder | None = None

    @property
    def role(self) -> Role | None:
        return None if self.holder is None else self.holder.role

    @property
    def user_id(self) -> str | None:
        return None if self.holder is None else self.holder.user_id


@dataclass(frozen=True)
class KeyCheck:
    """The result of a key's lookup. An unknown, revoked or expired key has no principal."""

    principal: Principal | None
    reason: str = ""  # without a principal: unknown, revoked, expired, session_over or membership_over
    seconds_left: float | None = None  # until the key expires


def mint_key(
    session: Session,
    tenant_id: str,
    name: str,
    scopes: tuple[Scope, ...],
    expires_at: datetime | None = None,
    requests_per_minute: int | None = None,
    holder: Holder | None = None,
    for_sessions: bool = False,
) -> tuple[ApiKey, str]:
    """Add a key to the tenant, or to `holder`. Returns its row and the secret, which cannot be read again.

    for_sessions: browser sessions alone stand for it; nobody learns its secret.
    """
    secret = _PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=new_id("key"),
        tenant_id=tenant_id,
        name=name,
        hash=hash_of(secret),
        scopes=[s.value for s in Scope if s in scopes],
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
        role=None if holder is None else holder.role.value,
        user_id=None if holder is None else holder.user_id,
        service_account_id=None if holder is None else holder.service_account_id,
        for_sessions=for_sessions,
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
    """The check of a key that exists. `key` has CHECKED's columns; `seconds_left` until it expires (None: never)."""
    left = None if seconds_left is None else float(seconds_left)
    if key.revoked_at is not None:
        return KeyCheck(None, "revoked")
    if left is not None and left <= 0:
        return KeyCheck(None, "expired")
    scopes, holder = frozenset(Scope(s) for s in key.scopes), None
    if key.role is not None:
        if key.holder_role is None:
            return KeyCheck(None, "membership_over")
        role = lower(Role(key.role), Role(key.holder_role))
        holder = Holder(role, key.holder_label, key.user_id, key.service_account_id)
        scopes &= scopes_of(role)
    return KeyCheck(Principal(key.tenant_id, key.id, scopes, key.requests_per_minute, holder), seconds_left=left)


def announce_revocation(session: Session) -> None:
    """Have every API process forget the rights that it caches, once the session's transaction commits."""
    session.execute(select(func.pg_notify(CHANNEL, RIGHTS_CHANGED)))


def hash_of(secret: str) -> bytes:
    """The stored hash, a plain SHA-256: with 256 random bits no slow password hash is needed."""
    return hashlib.sha256(secret.encode()).digest()


_OF_KEY = (
    *(ApiKey.id, ApiKey.tenant_id, ApiKey.scopes, ApiKey.revoked_at, ApiKey.requests_per_minute),
    *(ApiKey.role, ApiKey.user_id, ApiKey.service_account_id),
)
CHECKED = (
    *_OF_KEY,
    func.extract("epoch", ApiKey.expires_at - func.clock_timestamp()).label("key_left"),
    func.coalesce(Membership.role, ServiceAccount.role).label("holder_role"),
    func.coalesce(User.label, literal("service account ") + ServiceAccount.name).label("holder_label"),
)
_MEMBER = and_(Membership.tenant_id == ApiKey.tenant_id, Membership.user_id == ApiKey.user_id)
_ACCOUNT = and_(ServiceAccount.id == ApiKey.service_account_id, ServiceAccount.deleted_at.is_(None))
WITH_HOLDERS = (
    ApiKey.__table__.outerjoin(Membership, _MEMBER)
    .outerjoin(User, User.id == ApiKey.user_id)
    .outerjoin(ServiceAccount, _ACCOUNT)
)
HASHES = any_(bindparam("hashes", type_=ARRAY(LargeBinary)))
_FIND = select(*CHECKED).select_from(WITH_HOLDERS)
CHECK_KEYS = PreparedStatement(select(ApiKey.hash, *CHECKED).select_from(WITH_HOLDERS).where(ApiKey.hash == HASHES))
UNKNOWN = KeyCheck(None, "unknown")


def check_key_of_id(session: Session, key_id: str) -> KeyCheck:
    """As `check_key`, for a key that is known to exist."""
    found = session.execute(_FIND.where(ApiKey.id == key_id)).one()
    return key_check(found, found.key_left)
