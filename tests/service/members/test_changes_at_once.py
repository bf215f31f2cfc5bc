"""Changes of a tenant's members and invitations at one moment come one after another."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from service.members.membership import change_role, end_membership
from service.tenants.member_roles import Role
from service.tenants.models import Invitation
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


@pytest.mark.parametrize("lose", [end_membership, lower])
def test_an_owner_who_is_just_removed_or_lowered_invites_nobody(going, database, lose):
    """Else the link would be their way back: it is made too late to be taken back with their others."""
    user_id = user_of(going)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            lose(session, going.tenant_id, user_id)
            session.flush()
            made = pool.submit(going.post, "/v1/invitations", json={"role": "owner"})
            until(lambda: made.done() or waiting_for_locks(database))
        refused = made.result(PATIENCE)
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")
    with database.begin() as session:
        assert session.scalars(select(Invitation).where(Invitation.inviter_id == user_id)).all() == []
