"""Browser sessions and one-time sign-in links: credentials that stand for an API key and end with it. Knows no HTTP.

A session is checked like a key, against the same row: a revoked or expired key ends its sessions at once.
"""

import secrets
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.database.engine import clock
from service.database.prepared_statements import PreparedStatement
from service.tenants.api_keys import CHECKED, HASHES, WITH_HOLDERS, KeyCheck, Principal, check_key_of_id, hash_of, key_check
from service.tenants.models import ApiKey, BrowserSession, SignInLink

_SESSION, _LINK = "ms_", "ml_"
LINK_LASTS = timedelta(minutes=15)
OVER = KeyCheck(None, "session_over")
_ENDS = func.least(BrowserSession.expires_at, ApiKey.expires_at)
CHECK_SESSIONS = PreparedStatement(
    select(BrowserSession.hash, *CHECKED, func.extract("epoch", _ENDS - func.clock_timestamp()).label("session_left"))
    .select_from(WITH_HOLDERS.join(BrowserSession.__table__, BrowserSession.key_id == ApiKey.id))
    .where(BrowserSession.hash == HASHES)
)


def is_session(secret: str) -> bool:
    """Whether this credential is a session's, and not a key."""
    return secret.startswith(_SESSION)


def is_members_own(session: Session, principal: Principal) -> bool:
    """Whether the caller is a member's browser session, and stands for no key that may do less, or end sooner, than they."""
    return session.scalars(select(ApiKey.for_sessions).where(ApiKey.id == principal.key_id)).one()


def open_session(session: Session, principal: Principal, lasts: timedelta) -> tuple[str, timedelta]:
    """Open a browser session for the principal's key. Returns its secret and its duration: at most until the key expires."""
    now = clock(session)
    session.execute(delete(BrowserSession).where(BrowserSession.expires_at < now))
    key_ends = session.scalars(select(ApiKey.expires_at).where(ApiKey.id == principal.key_id)).one()
    ends = now + lasts if key_ends is None else min(now + lasts, key_ends)
    secret = _SESSION + secrets.token_urlsafe(32)
    session.add(BrowserSession(hash=hash_of(secret), tenant_id=principal.tenant_id, key_id=principal.key_id, expires_at=ends))
    return secret, ends - now


def session_check(found: Any) -> KeyCheck:
    """As `key_check`, for a row of CHECK_SESSIONS."""
    check = key_check(found, found.key_left)
    if check.principal is None:
        return check
    left = float(found.session_left)
    return KeyCheck(check.principal, seconds_left=left) if left > 0 else OVER


def close_session(session: Session, secret: str) -> None:
    """End the session. Closing one that is over changes nothing."""
    session.execute(delete(BrowserSession).where(BrowserSession.hash == hash_of(secret)))


def make_link(session: Session, principal: Principal) -> str:
    """The secret of a new link, which opens one session of the principal's key within LINK_LASTS."""
    now = clock(session)
    session.execute(delete(SignInLink).where(SignInLink.expires_at < now))
    secret = _LINK + secrets.token_urlsafe(32)
    link = SignInLink(hash=hash_of(secret), tenant_id=principal.tenant_id, key_id=principal.key_id, expires_at=now + LINK_LASTS)
    session.add(link)
    return secret


def use_link(session: Session, secret: str) -> Principal | None:
    """Use the link up: the principal of its key, or None if the link is unknown, used or too old, or its key ended."""
    used = delete(SignInLink).where(SignInLink.hash == hash_of(secret), SignInLink.expires_at > func.clock_timestamp())
    key_id = session.scalar(used.returning(SignInLink.key_id))
    if key_id is None:
        return None
    return check_key_of_id(session, key_id).principal
