"""Sign-in by an identity provider on loopback: there and back, every lie it could tell, more than one tenant."""

import time

import httpx
import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from service.app import create_app
from service.authentication import SESSION_COOKIE
from service.oidc.authorization_code import LASTS_SECONDS
from service.tenants.member_roles import Role
from service.tenants.models import Membership
from service.web.session.provider_sign_in import COOKIE
from tests.service.members.conftest import PUBLIC, Browser
from tests.service.members.sign_ins import refused, users

DAY = 86_400  # what is told in times from now is drawn when tests are collected, long before some of them run


def test_somebody_joins_by_invitation_and_signs_in_again(browser, provider, tenant, link, service, database):
    provider.sign_in_as("ada", name="Ada")
    page = browser.get(link(tenant.tenant_id).removeprefix(PUBLIC))
    assert "Sign in with Example ID and join" in page.text
    answer = browser.join(link(tenant.tenant_id))
    assert (answer.status_code, "url=/tasks" in answer.text) == (
        200,
        True,
    )  # no redirect: it would carry no Strict cookie
    cookies = [one.lower() for one in answer.headers.get_list("set-cookie")]
    (session,) = [one for one in cookies if one.startswith(SESSION_COOKIE)]
    assert "samesite=strict" in session
    assert "httponly" in session
    assert answer.headers["cache-control"] == "no-store"
    me = browser.me()
    assert (me["label"], me["role"], me["tenant_id"]) == ("ada@example.com", "owner", tenant.tenant_id)
    told = browser.get("/v1/audit").json()["data"]
    assert [(one["action"], one["actor"], one["user_id"]) for one in told] == [("join_tenant", me["label"], me["user_id"])]
    assert "ada@example.com" in browser.get("/members").text
    provider.sign_in_as("ada", "ada@new.example")  # the same subject under another address
    again = Browser(service.app)
    assert "url=/usage" in again.sign_in("/usage").text
    assert (again.me()["user_id"], again.me()["label"]) == (me["user_id"], "ada@new.example")
    assert browser.me()["user_id"] == me["user_id"]


def test_what_goes_to_the_provider_and_what_is_kept_meanwhile(browser, provider):
    answer = browser.get("/oidc/sign-in?next=/usage")
    asked = httpx.URL(answer.headers["location"]).params
    assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == ("code", "S256", "motet")
    assert asked["redirect_uri"] == f"{PUBLIC}/oidc/callback"
    assert {"openid", "email"} <= set(asked["scope"].split())
    cookie = answer.headers["set-cookie"].lower()
    for word in ("samesite=lax", "httponly", "path=/oidc", f"max-age={LASTS_SECONDS}"):
        assert word in cookie
    for secret in (asked["state"], asked["nonce"], "usage"):
        assert secret not in answer.headers["set-cookie"]  # it is sealed
    behind_tls = TestClient(browser.client.app, base_url="https://testserver", follow_redirects=False)
    assert "secure" in behind_tls.get("/oidc/sign-in").headers["set-cookie"].lower()


def test_an_address_links_nobody_to_anybody(browser, provider, tenant, link, database):
    provider.sign_in_as("first", "shared@example.com")
    browser.join(link(tenant.tenant_id))
    provider.sign_in_as("second", "shared@example.com")
    other = Browser(browser.client.app)
    refused(other, other.sign_in(), "no tenant has you as a member")
    assert [one.subject for one in users(database, email="shared@example.com")] == ["first"]  # the other is not even stored


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"claims": {"nonce": "another"}}, "its nonce is not that of this sign-in"),
        ({"claims": {"nonce": None}}, "its nonce is not that of this sign-in"),
        ({"claims": {"aud": "another"}}, "it is for another client"),
        ({"claims": {"aud": ["motet", "another"]}}, "another client was authorized"),
        ({"claims": {"azp": "another"}}, "another client was authorized"),
        ({"claims": {"aud": None}}, "it is for another client"),
        ({"claims": {"iss": "https://evil.example"}}, "its issuer is another"),
        ({"claims": {"exp": time.time() - DAY}}, "it has expired"),
        ({"claims": {"exp": None}}, "does not say from when until when"),
        ({"claims": {"exp": "never"}}, "does not say from when until when"),
        ({"claims": {"iat": time.time() - DAY}}, "it was not made just now"),
        ({"claims": {"iat": time.time() + 30 * DAY}}, "it was not made just now"),
        ({"claims": {"nbf": time.time() + 30 * DAY}}, "it does not hold yet"),
        ({"claims": {"sub": None}}, "it names no subject"),
        ({"claims": {"sub": "x" * 256}}, "it names no subject"),
        ({"signs": "none"}, "its signature is not good"),
        ({"signs": "HS256"}, "its signature is not good"),
        ({"signs": "impostor"}, "its signature is not good"),
        ({"signs": "unpublished"}, "signed with a key that the identity provider does not publish"),
        ({"iss": "https://evil.example"}, "was answered by another identity provider"),
        ({"refuses": "access_denied"}, "access_denied"),
    ],
)
def test_a_lie_opens_nothing(browser, provider, tenant, link, database, lie, said):
    provider.sign_in_as("eve")
    provider.tell(**lie)
    answer = browser.join(link(tenant.tenant_id))
    refused(browser, answer, said)
    assert users(database, subject="eve") == []


def test_an_issuer_that_names_itself_must_do_so(browser, provider, monkeypatch):
    gone = browser.get("/oidc/sign-in")
    back = browser.at_provider(gone.headers["location"])
    without = httpx.URL(back).copy_remove_param("iss")
    refused(browser, browser.get(str(without), cross_site=True), "does not say which identity provider answered")


def test_rotated_keys_are_followed_at_once(browser, provider, tenant, link):
    provider.sign_in_as("rota")
    browser.join(link(tenant.tenant_id))
    browser.sign_in()
    assert provider.calls.count("/jwks") == provider.calls.count("/.well-known/openid-configuration") == 1  # cached
    provider.tell(rotate=True)
    assert browser.sign_in().status_code == 200
    assert browser.sign_in().status_code == 200
    assert provider.calls.count("/jwks") == 2


def test_a_callback_is_good_once_in_the_browser_that_began_it(browser, provider, tenant, link, service):
    provider.sign_in_as("once")
    browser.join(link(tenant.tenant_id))
    gone = browser.get("/oidc/sign-in")
    kept = browser.cookies[COOKIE]
    back = browser.at_provider(gone.headers["location"])
    stranger = Browser(service.app)  # login CSRF: a victim is led to the callback of somebody else's sign-in
    refused(stranger, stranger.get(back, cross_site=True), "was not begun in this browser")
    stranger.get("/oidc/sign-in")
    refused(stranger, stranger.get(back, cross_site=True), "is not the one that this browser began last")
    assert browser.get(back, cross_site=True).status_code == 200
    del browser.cookies[SESSION_COOKIE]
    refused(browser, browser.get(back, cross_site=True), "was not begun in this browser")
    browser.cookies[COOKIE] = kept  # even with the cookie, the provider knows that the code was used
    refused(browser, browser.get(back, cross_site=True), "invalid_grant")


def test_a_sign_in_takes_ten_minutes_at_most_and_needs_its_seal(browser, provider, monkeypatch):
    gone = browser.get("/oidc/sign-in")
    back, now = browser.at_provider(gone.headers["location"]), time.time()
    value, path, samesite = browser.cookies[COOKIE]
    for damaged in (value[:-4] + "AAAA", "", "no seal", "gAAAA"):
        browser.cookies[COOKIE] = (damaged, path, samesite)
        refused(browser, browser.get(back, cross_site=True), "was not begun in this browser")
    browser.cookies[COOKIE] = (value, path, samesite)
    monkeypatch.setattr("service.oidc.authorization_code.time.time", lambda: now + LASTS_SECONDS + 5)
    refused(browser, browser.get(back, cross_site=True), "took longer than 10 minutes")


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/" + "x" * 9999]
)
def test_nobody_is_led_elsewhere_after_signing_in(browser, provider, tenant, link, then):
    provider.sign_in_as("led")
    browser.join(link(tenant.tenant_id))
    answer = browser.sign_in(then)
    assert 'content="0;url=/tasks"' in answer.text
    assert "evil" not in answer.text


def test_a_removed_member_is_out_at_once_and_a_lower_role_holds_at_once(browser, provider, tenant, link, service, new_member):
    owner = new_member(Role.OWNER, of=tenant)
    provider.sign_in_as("gone")
    browser.join(link(tenant.tenant_id, Role.EDITOR))
    me = browser.me()
    as_owner = TestClient(service.app)
    path, headers = f"/v1/members/{me['user_id']}", owner.headers
    assert as_owner.patch(path, json={"role": "viewer"}, headers=headers).status_code == 200
    assert browser.me()["scopes"] == ["read"]
    assert browser.post("/keys", name="x", scope="write").status_code == 403
    csrf = browser.csrf
    assert as_owner.delete(path, headers=headers).status_code == 200
    assert browser.get("/tasks").status_code == 303
    assert browser.post("/keys", csrf=csrf, name="x").status_code in (303, 401)
    refused_again = Browser(service.app)
    refused(refused_again, refused_again.sign_in(), "no tenant has you as a member")


def test_who_belongs_to_several_tenants_chooses(browser, provider, tenant, new_tenant, link, service):
    other, third = new_tenant(), new_tenant()
    provider.sign_in_as("many")
    browser.join(link(tenant.tenant_id, Role.OWNER))
    browser.join(link(other.tenant_id, Role.VIEWER))
    assert (browser.me()["tenant_id"], browser.me()["role"]) == (other.tenant_id, "viewer")
    assert len(browser.me()["tenants"]) == 2
    before = browser.cookies[SESSION_COOKIE]
    assert "Work in" in browser.get("/account").text
    assert browser.post("/tenant", tenant=tenant.tenant_id).status_code == 303
    assert (browser.me()["tenant_id"], browser.me()["role"]) == (tenant.tenant_id, "owner")
    old = Browser(service.app)
    old.cookies[SESSION_COOKIE] = before
    assert old.get("/tasks").status_code == 303  # the session of the other tenant is closed
    assert browser.post("/tenant", tenant=third.tenant_id).status_code == 403
    again = Browser(service.app)
    again.sign_in()
    assert again.me()["tenant_id"] == tenant.tenant_id  # where they were last


def test_a_provider_that_is_away_is_told_and_keys_still_sign_in(browser, provider, tenant, service):
    assert "Sign in with Example ID" in browser.get("/sign-in").text
    back = browser.at_provider(browser.get("/oidc/sign-in").headers["location"])
    provider.process.kill()
    provider.process.wait()
    refused(browser, browser.get(back, cross_site=True), "does not answer", 503)
    assert browser.post("/sign-in", key=tenant.key).status_code == 303
    assert browser.get("/tasks").status_code == 200


def test_an_address_that_the_token_leaves_out_comes_from_user_info(browser, provider, tenant, link):
    provider.sign_in_as("thin")
    provider.tell(thin=True)
    browser.join(link(tenant.tenant_id, Role.EDITOR, "thin@example.com"))
    assert browser.me()["label"] == "thin@example.com"


def test_a_name_stands_with_its_subject_where_no_address_is_verified(browser, provider, tenant, link):
    provider.sign_in_as("00u1", "ceo@example.com", verified=False, name="The Boss")
    browser.join(link(tenant.tenant_id))
    assert browser.me()["label"] == "The Boss (00u1)"


def test_a_public_client_needs_no_secret(provider, oidc_settings, tenant, link):
    provider.tell(public=True)
    provider.sign_in_as("pub")
    with TestClient(create_app(oidc_settings.model_copy(update={"oidc_client_secret": None}))) as client:
        browser = Browser(client.app)
        browser.join(link(tenant.tenant_id))
        assert browser.me()["label"] == "pub@example.com"


def test_without_a_provider_all_is_as_before(client, tenant, link):
    browser = Browser(client.app)
    assert "Sign in with" not in browser.get("/sign-in").text
    assert browser.get("/oidc/sign-in").status_code == 404
    assert browser.get("/oidc/callback?state=s&code=c").status_code == 404
    assert browser.post(link(tenant.tenant_id).removeprefix(PUBLIC)).status_code == 404
    assert client.get("/v1/sign-in").json() == {"object": "sign_in", "sso": False, "name": None}
    assert client.post("/v1/sign-in/device").json()["code"] == "sign_in_not_configured"
    assert browser.post("/sign-in", key=tenant.key).status_code == 303
    assert "/members" not in browser.get("/tasks").text.split("</nav>")[0]


def test_signing_out_everywhere_and_leaving(browser, provider, tenant, link, service, new_member, database):
    new_member(Role.OWNER, of=tenant)
    provider.sign_in_as("leaves")
    browser.join(link(tenant.tenant_id, Role.EDITOR))
    second = Browser(service.app)
    second.sign_in()
    assert browser.post("/account/sign-out-everywhere").status_code == 303
    assert second.get("/tasks").status_code == browser.get("/tasks").status_code == 303
    second.cookies.clear()
    second.sign_in()
    user = second.me()["user_id"]
    assert second.post("/account/leave").status_code == 303
    with database.begin() as session:
        assert session.scalar(select(Membership).where(Membership.user_id == user)) is None
