"""Memberships: listed, changed, ended. What is taken away takes effect at once, on sessions and keys, in every process.

Knows no HTTP beyond problems.
"""

from collections.abc import Sequence

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.database.engine import clock
from service.http.problems import Conflict, NotFound
from service.tenants.api_keys import Principal, announce_revocation
from service.tenants.member_roles import Role, RoleMissing
from service.tenants.models import ApiKey, BrowserSession, Invitation, Membership, SignInLink, Tenant, User


class LastOwner(Conflict):
    code, title = "last_owner", "A tenant keeps an owner"


def lock_tenant(session: Session, tenant_id: str) -> None:
    """Have changes of the tenant's members and invitations come one after another.

    The order of locks is tenant, then invitation, everywhere: in another order two changes could wait for each other.
    """
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update())


def hold_off_changes(session: Session, tenant_id: str) -> None:
    """Have such changes wait for this transaction, and this one for a change that has begun; two of these do not wait for each
    other. To be called before a membership is locked, since a change locks the tenant first."""
    session.execute(select(Tenant.id).where(Tenant.id == tenant_id).with_for_update(read=True, key_share=True))


def lock_as_owner(session: Session, owner: Principal) -> None:
    """Lock the caller's tenant, and check that they are its owner still: who was removed or lowered since the request was
    authorized would leave themselves a way back. Raises RoleMissing."""
    lock_tenant(session, owner.tenant_id)
    of_caller = select(Membership.role).where(Membership.tenant_id == owner.tenant_id, Membership.user_id == owner.user_id)
    if session.scalar(of_caller) != Role.OWNER:
        raise RoleMissing("This needs a member with the role owner; the caller is none any more.", needs=Role.OWNER.value)


def users_of(session: Session, memberships: Sequence[Membership]) -> dict[str, User]:
    """The users of these memberships, by id."""
    ids = [one.user_id for one in memberships]
    return {user.id: user for user in session.scalars(select(User).where(User.id.in_(ids)))}


def change_role(session: Session, tenant_id: str, user_id: str, role: Role) -> Membership:
    """Give the member another role; all their keys and sessions are bounded by it. Raises NotFound, LastOwner."""
    member = _locked(session, tenant_id, user_id)
    if member.role == role:
        return member
    if role is not Role.OWNER:
        _keep_an_owner(session, member)
        _take_back_invitations(session, tenant_id, user_id)
    member.role = role.value
    announce_revocation(session)
    return member


def end_membership(session: Session, tenant_id: str, user_id: str, *, by_platform: bool = False) -> Membership:
    """Take the user out of the tenant, with their keys and sessions there. Returns what was. Raises NotFound, LastOwner.

    by_platform: the last owner may go too.
    """
    member = _locked(session, tenant_id, user_id)
    if not by_platform:
        _keep_an_owner(session, member)
    _end_sessions(session, tenant_id, user_id)
    keys = update(ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.user_id == user_id, ApiKey.revoked_at.is_(None))
    session.execute(keys.values(revoked_at=clock(session)))
    _take_back_invitations(session, tenant_id, user_id)
    session.delete(member)
    announce_revocation(session)
    return member


def sign_out(session: Session, tenant_id: str, user_id: str) -> None:
    """Sign the member's browsers out of this tenant, and undo the sign-in links of their keys. Raises NotFound."""
    _locked(session, tenant_id, user_id)
    _end_sessions(session, tenant_id, user_id)
    announce_revocation(session)


def _end_sessions(session: Session, tenant_id: str, user_id: str) -> None:
    keys = select(ApiKey.id).where(ApiKey.tenant_id == tenant_id, ApiKey.user_id == user_id)
    for table in (BrowserSession, SignInLink):
        session.execute(delete(table).where(table.key_id.in_(keys)))


def _take_back_invitations(session: Session, tenant_id: str, user_id: str) -> None:
    """Or who is owner no longer could come back by a link made before."""
    theirs = update(Invitation).where(Invitation.tenant_id == tenant_id, Invitation.inviter_id == user_id)
    unused = theirs.where(Invitation.accepted_at.is_(None), Invitation.revoked_at.is_(None))
    session.execute(unused.values(revoked_at=clock(session)))


def _locked(session: Session, tenant_id: str, user_id: str) -> Membership:
    """The membership, under the tenant's lock."""
    lock_tenant(session, tenant_id)
    found = session.scalar(select(Membership).where(Membership.tenant_id == tenant_id, Membership.user_id == user_id))
    if found is None:
        raise NotFound(f"There is no member {user_id!r} in this tenant.")
    return found


def _keep_an_owner(session: Session, member: Membership) -> None:
    if member.role != Role.OWNER:
        return
    owners = select(func.count()).where(Membership.tenant_id == member.tenant_id, Membership.role == Role.OWNER.value)
    if session.scalars(owners).one() < 2:
        raise LastOwner("This is the tenant's last owner; make another member owner first.")
