"""A browser session that stands for a member's key: it may do what the key may, and no more."""

import pytest
from starlette.testclient import TestClient

from service.authentication import SESSION_COOKIE, csrf_token
from service.database.engine import new_id
from service.tenants.member_roles import Role
from service.tenants.models import Membership


@pytest.fixture
def key(new_member) -> str:
    """One of an owner's keys: it may only read."""
    owner = new_member(Role.OWNER)
    return owner.post("/v1/keys", json={"scopes": ["read"], "role": "viewer"}).json()["secret"]


@pytest.fixture
def browser(app) -> TestClient:
    return TestClient(app, raise_server_exceptions=False, follow_redirects=False)


def test_a_session_of_a_key_stays_in_its_tenant(browser, settings, key):
    """Another session would have the member's whole role, and outlive the key."""
    assert browser.post("/sign-in", data={"key": key}).status_code == 303
    me = browser.get("/v1/me").json()
    csrf = csrf_token(settings.secret_key.get_secret_value(), browser.cookies[SESSION_COOKIE])
    refused = browser.post("/tenant", data={"tenant": me["tenant_id"], "csrf": csrf})
    assert (refused.status_code, "belongs to one tenant" in refused.text) == (403, True)
    assert browser.get("/v1/me").json() == me
    assert me["scopes"] == ["read"]


def test_a_key_gets_no_session_by_a_change_of_tenant(browser, key):
    headers = {"Authorization": f"Bearer {key}"}
    tenant_id = browser.get("/v1/me", headers=headers).json()["tenant_id"]
    assert browser.post("/tenant", data={"tenant": tenant_id}, headers=headers).status_code == 403
    assert SESSION_COOKIE not in browser.cookies


def test_the_account_of_a_key_offers_no_change_of_tenant(browser, key, new_tenant, database):
    headers = {"Authorization": f"Bearer {key}"}
    user_id = browser.get("/v1/me", headers=headers).json()["user_id"]
    with database.begin() as session:
        session.add(Membership(id=new_id("member"), tenant_id=new_tenant().tenant_id, user_id=user_id, role="viewer"))
    page = browser.get("/account", headers=headers)
    assert (page.status_code, "Work in" in page.text) == (200, False)
