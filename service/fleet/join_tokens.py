"""Join tokens: each lets a node of one name register, once, until it expires. Stored only as a SHA-256. Knows no HTTP.

A node that has joined registers again with its own credential. A node that lost it needs a new join token of its name.
A reusable token's name ends with *: until it expires, any number of nodes whose names begin so register with it, under new
names or those of nodes that are away. The name of a node that is ready it does not open, so it ends nobody's work.
"""

import hmac
import secrets
from datetime import timedelta

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from service.database.engine import clock, new_id
from service.fleet.errors import JoinRefused
from service.fleet.models import JoinToken, Node
from service.fleet.worker_authentication import credential_hash
from service.http.problems import shown

_ALL = "*"
_WAY_OUT = "an admin makes a new one: POST /v1/admin/join-tokens"


def is_reusable(node_name: str) -> bool:
    """Whether a join token of this name is for all nodes whose names begin so."""
    return node_name.endswith(_ALL)


def mint(session: Session, node_name: str, lifetime: timedelta) -> tuple[JoinToken, str]:
    """A new join token's row, and the token itself, which is not stored."""
    token = "jt_" + secrets.token_urlsafe(32)
    row = _add(session, node_name, token, lifetime)
    session.flush()
    session.refresh(row)
    return row, token


def provide(session: Session, node_name: str, token: str, lifetime: timedelta) -> bool:
    """Store an operator's own secret as a join token, unless it is stored. Returns whether it became usable by this call.

    A token that expired unused gets a new lifetime. A used one stays used. A reusable one gets a new lifetime each time, and
    ends the others of its name: so it is rotated.
    """
    row = session.scalar(_of(node_name, token))
    if is_reusable(node_name):
        others = JoinToken.node_name == node_name, JoinToken.hash != credential_hash(token)
        session.execute(delete(JoinToken).where(*others))
    if row is None:
        _add(session, node_name, token, lifetime)
        return True
    now = clock(session)
    before = row.expires_at
    if is_reusable(node_name) or (row.used_at is None and before <= now):
        row.expires_at = now + lifetime
        return before <= now
    return False


def authorize(session: Session, name: str, node: Node | None, bearer: str | None) -> JoinToken | None:
    """The join token that matches `bearer` and may be used, locked, for the caller to mark as used; None if `bearer` is the
    credential of the node, whose row the caller holds locked. Raises JoinRefused."""
    if bearer is None:
        raise JoinRefused("A node registers with `Authorization: Bearer`, and its join token or its own credential.")
    if node is not None and hmac.compare_digest(node.credential_hash, credential_hash(bearer)):
        return None
    row = _reusable(session, name, bearer) or session.scalar(_of(name, bearer))
    if row is None:
        raise JoinRefused(_why_unknown(session, name, node, bearer))
    if is_reusable(row.node_name):
        if node is not None and node.status == "ready":
            raise JoinRefused(
                f"Node {name} is ready, so a join token of all {row.node_name} does not open its name: it registers with its "
                f"own credential, or once it has been silent for a lease; or {_WAY_OUT} of this name."
            )
    elif row.used_at is not None:
        raise JoinRefused(f"The join token of node {name} was used on {row.used_at:%Y-%m-%d %H:%M:%S} UTC; {_WAY_OUT}.")
    if row.expires_at <= clock(session):
        raise JoinRefused(
            f"The join token of node {row.node_name} expired on {row.expires_at:%Y-%m-%d %H:%M:%S} UTC; {_WAY_OUT}."
        )
    return row


def _reusable(session: Session, name: str, bearer: str) -> JoinToken | None:
    same = select(JoinToken.node_name).where(JoinToken.hash == credential_hash(bearer), JoinToken.node_name.endswith(_ALL))
    fitting = [one for one in session.scalars(same) if name.startswith(one.removesuffix(_ALL))]
    return session.scalar(_of(max(fitting, key=len), bearer)) if fitting else None


def _why_unknown(session: Session, name: str, node: Node | None, bearer: str) -> str:
    other = session.scalar(select(JoinToken.node_name).where(JoinToken.hash == credential_hash(bearer)).limit(1))
    if other is not None:
        whom = "nodes" if is_reusable(other) else "a node"
        return f"This join token is for {whom} named {other}, not {shown(name)}; {_WAY_OUT}."
    if node is not None:
        return f"There is a node named {name}: it registers with its own credential, or a join token of its name; {_WAY_OUT}."
    return f"This is no join token of a node named {shown(name)}; {_WAY_OUT}."


def _of(node_name: str, token: str) -> Select[JoinToken]:
    own = JoinToken.hash == credential_hash(token), JoinToken.node_name == node_name
    return select(JoinToken).where(*own).with_for_update().execution_options(populate_existing=True)


def _add(session: Session, node_name: str, token: str, lifetime: timedelta) -> JoinToken:
    """Used tokens are stored forever: otherwise an operator's own secret would work again."""
    now = clock(session)
    unused = JoinToken.node_name == node_name, JoinToken.used_at.is_(None), JoinToken.expires_at < now
    session.execute(delete(JoinToken).where(*unused))
    row = JoinToken(id=new_id("jointoken"), node_name=node_name, hash=credential_hash(token), expires_at=now + lifetime)
    session.add(row)
    return row
