"""Who gets in after the identity provider has vouched for somebody: the user's row, the tenant, and a key to act with.

Users are known by issuer and subject. An address links nobody to anything, since a provider may give it to somebody else later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.audit.audit_trail import Note
from service.database.engine import clock, new_id
from service.http.problems import Forbidden, NotFound
from service.members.invitations import accept
from service.members.membership import hold_off_changes
from service.oidc.identity import Identity
from service.tenants.api_keys import Holder, Principal, check_key_of_id, mint_key
from service.tenants.member_roles import Role, scopes_of
from service.tenants.models import ApiKey, Membership, Tenant, User

_SESSIONS_KEY = "dashboard"


class NoTenant(Forbidden):
    code, title = "no_tenant", "No tenant has you as a member"


@dataclass(frozen=True)
class Place:
    """A tenant that a user belongs to."""

    tenant_id: str
    name: str
    role: Role


def places_of(session: Session, user_id: str) -> list[Place]:
    """The user's tenants, the one that they signed in to last first."""
    found = select(Membership, Tenant.name).join(Tenant).where(Membership.user_id == user_id)
    rows = session.execute(found.order_by(Membership.signed_in_at.desc(), Membership.id))
    return [Place(member.tenant_id, name, Role(member.role)) for member, name in rows]


def admit(session: Session, identity: Identity, invitation: str | None = None, tenant: str | None = None) -> tuple[User, Place]:
    """The user and the tenant that they sign in to: the invitation's, or `tenant` (id or name), else the one of last time.

    Raises NoTenant (who has none is not stored), NotFound for a `tenant` that is not theirs, InvitationOver, AddressDiffers.
    """
    user = _user(session, identity)
    if invitation is not None:
        tenant = accept(session, invitation, user).tenant_id
    places = places_of(session, user.id)
    if not places:
        raise NoTenant(
            f"You are signed in as {user.label}, but no tenant has you as a member. Ask an owner of your tenant for an "
            "invitation, and open its link."
        )
    return user, _chosen(places, tenant)


def enter(session: Session, user_id: str, place: Place) -> Principal:
    """The principal of the user's browser sessions in this tenant; from now on the next sign-in leads there. Raises NotFound
    for a member who was just removed."""
    hold_off_changes(session, place.tenant_id)
    member = session.scalar(
        select(Membership).where(Membership.tenant_id == place.tenant_id, Membership.user_id == user_id).with_for_update()
    )
    if member is None:
        raise NotFound("You are no member of this tenant any more.")
    member.signed_in_at = clock(session)
    theirs = select(ApiKey.id).where(ApiKey.tenant_id == place.tenant_id, ApiKey.user_id == user_id, ApiKey.for_sessions)
    key_id = session.scalar(theirs.where(ApiKey.revoked_at.is_(None)).limit(1))
    if key_id is None:
        # bounded by the member's role at each request, so it has the highest
        holder = Holder(Role.OWNER, "", user_id)
        key, _ = mint_key(
            session, place.tenant_id, _SESSIONS_KEY, tuple(scopes_of(Role.OWNER)), holder=holder, for_sessions=True
        )
        key_id = key.id
    session.flush()
    principal = check_key_of_id(session, key_id).principal
    assert principal is not None, "the membership is locked and the key is not revoked"
    return principal


def give_key(session: Session, user_id: str, place: Place, name: str, lasts: timedelta) -> tuple[ApiKey, str, Principal]:
    """A key for a program that the user signed in with, of their role, and its secret."""
    enter(session, user_id, place)
    holder = Holder(place.role, "", user_id)
    scopes = tuple(scopes_of(place.role))
    key, secret = mint_key(session, place.tenant_id, name, scopes, clock(session) + lasts, holder=holder)
    principal = check_key_of_id(session, key.id).principal
    assert principal is not None
    return key, secret, principal


def note_sign_in(session: Session, principal: Principal, action: str, request_id: str, targets: Sequence[str] = ()) -> None:
    """An audit entry of a sign-in, which no key has asked for."""
    note = Note(principal, action, list(targets), request_id, reading=True)
    note.write_entry(session)


def _user(session: Session, identity: Identity) -> User:
    """The user's row, made or brought up to date."""
    said = {"email": identity.email, "name": identity.name, "label": identity.label[:600]}
    now = clock(session)
    known = {"id": new_id("user"), "issuer": identity.issuer, "subject": identity.subject, "signed_in_at": now, **said}
    upsert = (
        insert(User)
        .values(**known)
        .on_conflict_do_update(index_elements=[User.issuer, User.subject], set_={"signed_in_at": now, **said})
    )
    return session.scalars(upsert.returning(User), execution_options={"populate_existing": True}).one()


def _chosen(places: Sequence[Place], tenant: str | None) -> Place:
    if tenant is None:
        return places[0]
    for place in places:
        if tenant in (place.tenant_id, place.name):
            return place
    names = ", ".join(place.name for place in places)
    raise NotFound(f"You are no member of a tenant {tenant!r}; yours: {names}.")
