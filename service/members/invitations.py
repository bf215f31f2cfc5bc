"""Invitations: one-time links into a tenant. Knows no HTTP beyond problems.

Joining takes the link, and where the invitation names an address, a sign-in with that address, verified by the provider. So a
link that was forwarded or leaked admits nobody else, and an address alone moves nobody into a tenant that they did not choose.
"""

import secrets
from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.database.engine import clock, new_id
from service.http.problems import Conflict, Forbidden, NotFound
from service.members.membership import lock_as_owner, lock_tenant
from service.tenants.api_keys import Principal, hash_of
from service.tenants.member_roles import Role, lower
from service.tenants.models import Invitation, Membership, User

_PREFIX = "mi_"
LASTS = timedelta(days=7)


class InvitationOver(NotFound):
    code, title = "invitation_over", "The invitation is over"


class AddressDiffers(Forbidden):
    code, title = "address_differs", "The invitation is for somebody else"


class InvitationEnded(Conflict):
    code = "invitation_ended"


def invite(
    session: Session, tenant_id: str, role: Role, email: str | None, inviter: Principal, lasts: timedelta = LASTS
) -> tuple[Invitation, str]:
    """A new invitation and its secret, which cannot be read again. Raises RoleMissing for a member who is owner no longer."""
    if inviter.user_id is None:
        lock_tenant(session, tenant_id)  # an admin of the platform
    else:
        lock_as_owner(session, inviter)
    secret = _PREFIX + secrets.token_urlsafe(32)
    made = Invitation(
        id=new_id("invitation"),
        tenant_id=tenant_id,
        hash=hash_of(secret),
        role=role.value,
        email=email,
        invited_by=inviter.holder.label if inviter.holder is not None else "an admin",
        inviter_id=inviter.user_id,
        expires_at=clock(session) + lasts,
    )
    session.add(made)
    session.flush()
    session.refresh(made)
    return made, secret


def open_invitation(session: Session, secret: str, *, lock: bool = False) -> Invitation:
    """The invitation of this link. Raises InvitationOver if it is unknown, used, revoked or expired."""
    found = select(Invitation).where(
        Invitation.hash == hash_of(secret),
        Invitation.accepted_at.is_(None),
        Invitation.revoked_at.is_(None),
        Invitation.expires_at > func.clock_timestamp(),
    )
    invitation = session.scalar(found.with_for_update() if lock else found)
    if invitation is None:
        raise InvitationOver("This invitation was used, taken back, or has expired. Ask an owner of the tenant for a new one.")
    return invitation


def accept(session: Session, secret: str, user: User) -> Membership:
    """Use the invitation up: the user's membership, never with a lower role than they had. Raises InvitationOver,
    AddressDiffers."""
    lock_tenant(session, open_invitation(session, secret).tenant_id)
    invitation = open_invitation(session, secret, lock=True)  # again: used or taken back meanwhile, it admits nobody
    if invitation.email is not None and not same_address(invitation.email, user.email):
        verified = (
            f"signed in as {user.label}" if user.email else f"{user.label}, without an address that the provider verified"
        )
        raise AddressDiffers(f"This invitation is for {invitation.email}; you are {verified}. Ask for one for yourself.")
    invitation.accepted_at, invitation.accepted_by = clock(session), user.id
    of_user = select(Membership).where(Membership.tenant_id == invitation.tenant_id, Membership.user_id == user.id)
    member = session.scalar(of_user)
    if member is None:
        member = Membership(id=new_id("member"), tenant_id=invitation.tenant_id, user_id=user.id, role=invitation.role)
        session.add(member)
    elif lower(Role(member.role), Role(invitation.role)) is Role(member.role):
        member.role = invitation.role
    session.flush()
    session.refresh(member)
    return member


def take_back(session: Session, invitation: Invitation) -> None:
    """Its link admits nobody any more. Raises InvitationEnded if somebody has used it."""
    if invitation.accepted_at is not None:
        raise InvitationEnded("Somebody has joined with this invitation; remove the member instead.")
    if invitation.revoked_at is None:
        invitation.revoked_at = clock(session)


def same_address(one: str, other: str | None) -> bool:
    """Whether two addresses are the same. Case is ignored in ASCII alone: other letters have look-alikes in the other case."""
    if other is None:
        return False
    if one.isascii() and other.isascii():
        return one.lower() == other.lower()
    return one == other
