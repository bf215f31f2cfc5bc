"""Changes of a tenant's members and invitations at one moment come one after another, and none waits for ever."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import select

from service.http.problems import NotFound
from service.members.invitations import InvitationOver
from service.members.membership import change_role, end_membership
from service.members.tenant_entry import Place, admit, enter
from service.oidc.identity import Identity
from service.tenants.member_roles import Role
from service.tenants.models import ApiKey, Invitation, Membership, Tenant, User
from service.tenants.routes import revoke
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks


def lower(session, tenant_id, user_id):
    change_role(session, tenant_id, user_id, Role.EDITOR)


@pytest.fixture
def owner(new_member):
    return new_member(Role.OWNER)


@pytest.fixture
def going(new_member, owner):
    """Another owner, who does not stay one."""
    return new_member(Role.OWNER, of=owner)


def user_of(caller) -> str:
    return caller.get("/v1/me").json()["user_id"]


def beside(database, change, call):
    """The call's result, or its exception: it comes while a transaction that has begun with `change` is open."""
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            change(session)
            session.flush()
            called = pool.submit(call)
            until(lambda: called.done() or waiting_for_locks(database))
        return called.result(PATIENCE)


def while_removed(member, database, call):
    """The call's result, or its exception: it comes when a change of the tenant's members has begun, which then is the member's
    removal."""
    user_id = user_of(member)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            session.get_one(Tenant, member.tenant_id, with_for_update=True)
            called = pool.submit(call)
            until(lambda: called.done() or waiting_for_locks(database))
            end_membership(session, member.tenant_id, user_id)
        return called.result(PATIENCE)


@pytest.mark.parametrize("lose", [end_membership, lower])
def test_an_owner_who_is_just_removed_or_lowered_invites_nobody(going, database, lose):
    """Else the link would be their way back: it is made too late to be taken back with their others."""
    user_id = user_of(going)
    invites = partial(going.post, "/v1/invitations", json={"role": "owner"})
    refused = beside(database, lambda session: lose(session, going.tenant_id, user_id), invites)
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")
    with database.begin() as session:
        assert session.scalars(select(Invitation).where(Invitation.inviter_id == user_id)).all() == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "members/{viewer}", {"role": "owner"}),
        ("DELETE", "members/{viewer}", None),
        ("DELETE", "members/{viewer}/sessions", None),
        ("POST", "service-accounts", {"name": "left behind", "role": "editor"}),
        ("PATCH", "service-accounts/{account}", {"role": "editor"}),
        ("DELETE", "service-accounts/{account}", None),
        ("POST", "service-accounts/{account}/keys", {"name": "left behind"}),
        ("DELETE", "invitations/{invitation}", None),
    ],
)
def test_an_owner_who_is_just_removed_manages_nothing(going, owner, new_member, database, method, path, body):
    made = {
        "viewer": user_of(new_member(Role.VIEWER, of=owner)),
        "account": owner.post("/v1/service-accounts", json={"name": "program", "role": "viewer"}).json()["id"],
        "invitation": owner.post("/v1/invitations", json={"role": "viewer"}).json()["id"],
    }
    user_id = user_of(going)
    asks = partial(going.request, method, f"/v1/{path.format(**made)}", json=body)
    refused = beside(database, lambda session: end_membership(session, going.tenant_id, user_id), asks)
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")


def test_a_member_who_is_just_removed_makes_no_key(going, owner, database):
    """It was not revoked with their others, and worked again once they were invited anew."""
    made = while_removed(going, database, partial(going.post, "/v1/keys", json={"name": "left behind"}))
    assert (made.status_code, made.json()["code"]) == (401, "key_refused")
    assert "left behind" not in {key["name"] for key in owner.get("/v1/keys").json()["data"]}


def test_a_key_that_is_just_revoked_makes_no_other(tenant, database):
    me = tenant.get("/v1/me").json()

    def revoked(session) -> None:
        revoke(session, session.get_one(ApiKey, me["key_id"], with_for_update=True))

    refused = beside(database, revoked, partial(tenant.post, "/v1/keys", json={"name": "left behind"}))
    assert (refused.status_code, refused.json()["reason"]) == (401, "revoked")
    with database.begin() as session:
        assert session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == me["tenant_id"])).all() == [me["key_id"]]


def test_an_invitation_that_is_taken_back_while_somebody_joins_admits_nobody(going, database):
    link = going.post("/v1/invitations", json={"role": "viewer"}).json()["url"].rpartition("/")[2]

    def join() -> None:
        with database.begin() as session:
            admit(session, Identity("https://id.example", link, None, "late"), link)

    with pytest.raises(InvitationOver):
        while_removed(going, database, join)
    with database.begin() as session:
        late = select(User.id).where(User.subject == link)
        assert session.scalars(select(Membership).where(Membership.user_id.in_(late))).all() == []


def test_a_member_who_signs_in_while_they_are_removed_does_not_get_in(going, database):
    """The sign-in locked the membership first, and then waited for the tenant: each waited for the other."""
    user_id = user_of(going)

    def sign_in() -> None:
        with database.begin() as session:
            enter(session, user_id, Place(going.tenant_id, "", Role.OWNER))

    sign_in()
    with pytest.raises(NotFound, match="no member of this tenant any more"):
        while_removed(going, database, sign_in)


def test_an_invitation_is_taken_back_while_its_inviter_is_removed(owner, going, database):
    made = going.post("/v1/invitations", json={"role": "viewer"}).json()["id"]
    taken_back = while_removed(going, database, partial(owner.delete, f"/v1/invitations/{made}"))
    assert taken_back.json()["revoked_at"]
