"""Sessions, their cookies and CSRF tokens, one-time links, and a tenant's own keys."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from service.authentication import CSRF_HEADER, SESSION_COOKIE
from service.tenants.api_keys import Scope, hash_of
from service.tenants.models import ApiKey, BrowserSession, SignInLink

SITE = {"Origin": "http://testserver"}


class Browser:
    """A browser without scripts: cookies, forms, no key in any header."""

    def __init__(self, client: TestClient) -> None:
        self.client = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False)

    def get(self, path, **how):
        return self.client.get(path, **how)

    def post(self, path, **fields):
        return self.client.post(path, data=fields, headers=SITE)

    def sign_in(self, key):
        answer = self.post("/sign-in", key=key, next="/usage")
        self.client.cookies = answer.cookies
        return answer

    @property
    def secret(self):
        return self.client.cookies[SESSION_COOKIE]

    @property
    def csrf(self):
        return re.search(r'<meta name="csrf" content="([0-9a-f]{64})">', self.get("/tasks").text)[1]


@pytest.fixture
def browser(client):
    return Browser(client)


def test_a_key_opens_a_session_whose_cookie_no_script_and_no_other_site_gets(browser, tenant, database):
    answer = browser.sign_in(tenant.key)
    assert (answer.status_code, answer.headers["location"]) == (303, "/usage")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "max-age=43200" in cookie.lower() or "max-age=43199" in cookie.lower()
    assert "secure" not in cookie.lower()  # plain HTTP on this machine; behind TLS it is, see below
    assert tenant.key not in cookie
    assert browser.get("/tasks").status_code == 200
    with database.begin() as session:
        assert session.get(BrowserSession, hash_of(browser.secret)).tenant_id == tenant.tenant_id


def test_behind_tls_the_cookie_is_secure(client, tenant):
    tls = TestClient(client.app, base_url="https://motet.example", follow_redirects=False)
    answer = tls.post("/sign-in", data={"key": tenant.key}, headers={"Origin": "https://motet.example"})
    assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("key", ["", "mk_" + "x" * 43, "ms_" + "x" * 43, "no key\nat all", "mk_\0"])
def test_what_is_no_key_opens_nothing(browser, key):
    answer = browser.post("/sign-in", key=key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "not known here" in answer.text


def test_a_session_is_no_key(browser, tenant, client):
    browser.sign_in(tenant.key)
    refused = client.get("/v1/tasks", headers={"Authorization": f"Bearer {browser.secret}"})
    assert (refused.status_code, refused.json()["code"]) == (401, "key_refused")
    assert Browser(client).post("/sign-in", key=browser.secret).status_code == 401


def test_the_api_takes_a_session_for_reading_and_its_token_for_changing(browser, tenant):
    task, _ = tenant.task(), browser.sign_in(tenant.key)
    assert browser.get("/v1/tasks").json()["data"][0]["id"] == task["id"]
    path = f"/v1/tasks/{task['id']}/cancel"
    for headers in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: "0" * 64}, {CSRF_HEADER: "é".encode("latin-1")}):
        refused = browser.client.post(path, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "csrf_refused")
    assert browser.get(f"/v1/tasks/{task['id']}").json()["status"] == "validating"
    assert browser.client.post(path, headers={CSRF_HEADER: browser.csrf}).json()["status"] == "cancelled"


def test_a_token_is_its_sessions_own(browser, client, tenant):
    browser.sign_in(tenant.key)
    other = Browser(client)
    other.sign_in(tenant.key)
    task = tenant.task()
    refused = browser.client.post(f"/v1/tasks/{task['id']}/cancel", headers={CSRF_HEADER: other.csrf})
    assert refused.status_code == 403
    assert browser.post(f"/tasks/{task['id']}/cancel", csrf=other.csrf).status_code == 403
    assert browser.post(f"/tasks/{task['id']}/cancel", csrf=browser.csrf).status_code == 303


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}])
def test_forms_of_other_sites_are_refused(browser, tenant, headers):
    refused = browser.client.post("/sign-in", data={"key": tenant.key}, headers=headers)
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    assert "another site" in refused.text


def test_a_revoked_key_ends_its_sessions(browser, tenant, database, app):
    browser.sign_in(tenant.key)
    with database.begin() as session:
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(tenant.key)).values(revoked_at=datetime.now(UTC)))
    app.state.motet.keys.forget()
    answer = browser.get("/tasks?text=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/tasks%3Ftext%3Dx&why=revoked")
    assert "was revoked" in browser.get(answer.headers["location"]).text
    assert browser.get("/v1/tasks").json()["reason"] == "revoked"


def test_a_session_lasts_no_longer_than_its_key(browser, tenant, database, app):
    soon = datetime.now(UTC) + timedelta(minutes=7)
    with database.begin() as session:
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(tenant.key)).values(expires_at=soon))
    browser.sign_in(tenant.key)
    with database.begin() as session:
        assert session.get(BrowserSession, hash_of(browser.secret)).expires_at == soon
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(tenant.key)).values(expires_at=datetime.now(UTC)))
    app.state.motet.keys.forget()
    assert browser.get("/tasks").headers["location"].endswith("&why=expired")


def test_a_session_ends_by_itself_and_by_signing_out(browser, client, tenant, database, app):
    browser.sign_in(tenant.key)
    secret, csrf = browser.secret, browser.csrf
    assert browser.post("/sign-out").status_code == 403  # another site could sign one out otherwise
    assert browser.post("/sign-out", csrf=csrf).headers["location"] == "/sign-in"
    browser.client.cookies.set(SESSION_COOKIE, secret)  # a thief has kept it
    assert browser.get("/tasks").headers["location"].endswith("&why=session_over")
    again = Browser(client)
    again.sign_in(tenant.key)
    with database.begin() as session:
        over = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(update(BrowserSession).where(BrowserSession.hash == hash_of(again.secret)).values(expires_at=over))
    app.state.motet.keys.forget()
    assert again.get("/tasks").headers["location"].endswith("&why=session_over")


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/ok\r\nX: y", "\\\\evil"]
)
def test_signing_in_leads_nowhere_else(browser, tenant, path):
    assert browser.post("/sign-in", key=tenant.key, next=path).headers["location"] == "/tasks"


def test_a_link_works_once(browser, client, tenant, database):
    made = tenant.post("/v1/sign-in-links").json()
    path = made["url"].removeprefix("http://testserver")
    assert path.startswith("/sign-in/ml_")
    opened = browser.get(path)
    assert opened.status_code == 200
    assert SESSION_COOKIE in opened.cookies
    assert browser.get("/tasks").status_code == 200
    assert "url=/tasks" in opened.text
    again = Browser(client).get(path)
    assert (again.status_code, SESSION_COOKIE in again.cookies) == (401, False)
    assert "used already" in again.text


@pytest.mark.parametrize(
    ("next", "leads"), [("/tasks/task_1?sort=best", "/tasks/task_1?sort=best"), ("//evil.example", "/tasks")]
)
def test_a_link_may_lead_to_a_page_of_this_site_alone(browser, tenant, next, leads):
    path = tenant.post("/v1/sign-in-links").json()["url"].removeprefix("http://testserver")
    assert f'url={leads}"' in browser.get(path, params={"next": next}).text


PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}  # as browsers ask where somebody opens an address


@pytest.mark.parametrize("path", ["/nowhere", "/v1/nowhere", "/tasks/new/nowhere/deeper"])
def test_an_address_that_leads_nowhere_is_a_page_to_browsers_and_json_to_programs(browser, path):
    shown = browser.get(path, headers=PAGE)
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "No such page" in shown.text
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    told = browser.get(path)
    assert (told.status_code, told.json()["code"]) == (404, "route_unknown")


def test_an_address_of_the_api_opened_in_a_browser_answers_with_pages(browser, tenant):
    assert browser.get("/v1/tasks/task_x", headers=PAGE).headers["location"].startswith("/sign-in?next=/v1/tasks/task_x")
    browser.sign_in(tenant.key)
    refused = browser.get("/v1/tasks/task_x", headers=PAGE)
    assert (refused.status_code, "There is no task" in refused.text, "</html>" in refused.text) == (404, True, True)
    assert browser.get("/openai/v1/nowhere", headers=PAGE).json()["error"]  # that API's own format
    assert "Not that way" in browser.get("/theme", headers=PAGE).text


def test_a_link_too_old_or_of_an_ended_key_opens_nothing(browser, tenant, database):
    old = tenant.post("/v1/sign-in-links").json()["url"].removeprefix("http://testserver")
    with database.begin() as session:
        over = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(update(SignInLink).where(SignInLink.tenant_id == tenant.tenant_id).values(expires_at=over))
    assert browser.get(old).status_code == 401
    revoked = tenant.post("/v1/sign-in-links").json()["url"].removeprefix("http://testserver")
    with database.begin() as session:
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(tenant.key)).values(revoked_at=datetime.now(UTC)))
    assert browser.get(revoked).status_code == 401
    with database.begin() as session:
        assert list(session.scalars(select(BrowserSession).where(BrowserSession.tenant_id == tenant.tenant_id))) == []


def test_guessing_links_is_throttled_like_guessing_keys(settings_for, new_database_url, tmp_path, serve):
    caller = serve(settings_for(new_database_url, tmp_path, failed_authentications_per_minute=3))
    guessing = Browser(caller.client)
    statuses = [guessing.get(f"/sign-in/ml_{number}").status_code for number in range(5)]
    assert statuses == [401, 401, 401, 429, 429]


def test_own_keys_are_made_listed_and_revoked(tenant, new_tenant):
    made = tenant.post("/v1/keys", json={"name": "laptop", "scopes": ["read"]})
    assert made.status_code == 201
    secret, id = made.json()["secret"], made.json()["id"]
    listed = tenant.get("/v1/keys").json()["data"]
    assert [(key["name"], key["secret"]) for key in listed] == [("laptop", None), ("test", None)]
    reading = tenant.client.get("/v1/tasks", headers={"Authorization": f"Bearer {secret}"})
    assert reading.status_code == 200
    other = new_tenant()
    assert id not in other.get("/v1/keys").text
    assert other.delete(f"/v1/keys/{id}").status_code == 404
    assert tenant.delete(f"/v1/keys/{id}").json()["revoked_at"] is not None
    refused = tenant.client.get("/v1/tasks", headers={"Authorization": f"Bearer {secret}"})
    assert refused.json()["reason"] == "revoked"


def test_no_key_makes_one_that_may_do_more(new_tenant, tenant, database):
    assert tenant.post("/v1/keys", json={"scopes": ["read", "admin"]}).json()["code"] == "scope_missing"
    reader = new_tenant(Scope.READ)
    assert reader.post("/v1/keys", json={"scopes": ["read"]}).status_code == 403
    ends = datetime.now(UTC) + timedelta(hours=1)
    with database.begin() as session:
        own = update(ApiKey).where(ApiKey.hash == hash_of(tenant.key))
        session.execute(own.values(expires_at=ends, requests_per_minute=90))
    later = (ends + timedelta(days=9)).isoformat()
    for asked in ({}, {"expires_at": later, "requests_per_minute": 5000}):
        made = tenant.post("/v1/keys", json=asked).json()
        assert datetime.fromisoformat(made["expires_at"]) == ends
        assert made["requests_per_minute"] == 90
    assert tenant.post("/v1/keys", json={"expires_at": "2020-01-01T00:00:00Z"}).status_code == 422


def test_a_key_revokes_none_that_may_do_more(new_tenant, database):
    strong = new_tenant(*Scope)
    weak = strong.post("/v1/keys", json={"scopes": ["read", "write"]}).json()["secret"]
    own = strong.get("/v1/keys").json()["data"][-1]["id"]
    refused = strong.client.delete(f"/v1/keys/{own}", headers={"Authorization": f"Bearer {weak}"})
    assert (refused.status_code, refused.json()["needs"]) == (403, "admin")


def test_every_page_has_the_headers_and_no_inline_script(browser, tenant):
    browser.sign_in(tenant.key)
    task = tenant.task(name="x")
    for path in ("/tasks", f"/tasks/{task['id']}", f"/tasks/{task['id']}/cancel", "/tasks/task_none", "/sign-in"):
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] in ("private, no-cache", "no-store")
        assert "<script>" not in answer.text
        assert not re.search(r"<[^>]+\son\w+=|<[^>]+\sstyle=", answer.text)


def test_static_files_are_kept_for_good_under_their_hash_alone(browser):
    path = re.search(r'href="(/static/[0-9a-f]{16}/app.css)"', browser.get("/sign-in").text)[1]
    assert "immutable" in browser.get(path).headers["cache-control"]
    assert browser.get("/static/0000000000000000/app.css").headers["cache-control"] == "no-store"
    for name in ("none.js", "..%2fapp.py", "../rendering.py"):
        assert browser.get(f"/static/{path.split('/')[2]}/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/nowhere", "/v1/adapters/adapter_gone/archive", "/tasks/task_gone"])
def test_whoever_is_signed_in_keeps_the_navigation_on_an_address_that_is_not_there(browser, tenant, path):
    page = {"Accept": "text/html,*/*;q=0.8"}
    browser.sign_in(tenant.key)
    found = browser.get(path, headers=page)
    assert found.status_code == 404
    for shown in ('<nav aria-label="Pages">', 'action="/sign-out"', f'name="csrf" content="{browser.csrf}"'):
        assert shown in found.text
    assert found.headers["content-security-policy"].startswith("default-src 'none'")
    assert "application/problem+json" in browser.get(path if "task" not in path else "/v1/tasks/t").headers["content-type"]
    browser.client.cookies = {}
    for cookies in ({}, {SESSION_COOKIE: "ms_unknown"}):
        browser.client.cookies = cookies
        stranger = browser.get("/nowhere", headers=page)
        assert stranger.status_code == 404
        assert "No such page" in stranger.text
        assert "<nav" not in stranger.text
