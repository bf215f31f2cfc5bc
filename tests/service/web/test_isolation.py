"""Every page, asked of the routes there are: none without a session, none of another tenant's, none of admins' for others."""

import re

import pytest
from starlette.testclient import TestClient

from service.authentication import SESSION_COOKIE
from service.tenants.member_roles import Role
from service.web.page_route import PageRoute
from service.webhooks.models import Webhook
from tests.service.api import chat_rows, jsonl
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps

OPEN = {
    *("/", "/sign-in", "/sign-in/{secret}", "/sign-out", "/theme"),
    *("/oidc/sign-in", "/oidc/callback", "/invitations/{secret}"),
}
ADMINS = ("/admin", "/cluster/nodes")
ACTS = {"act": "cancel"}
SECRET = "a-name-that-nobody-else-may-read"
FOLDER = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


def page_routes(app) -> list[tuple[str, str]]:
    return [(method, route.path) for route in app.routes if isinstance(route, PageRoute) for method in route.methods]


def signed_in(client, key):
    made = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False)
    answer = made.post("/sign-in", data={"key": key})
    assert SESSION_COOKIE in answer.cookies
    made.cookies = answer.cookies
    return made, re.search(r'name="csrf" content="(\w+)"', made.get("/tasks").text)[1]


def asked(browser, csrf, method, path, **more):
    if method == "GET":
        return browser.get(path)
    return browser.post(path, data={"csrf": csrf} | more)


@pytest.fixture
def theirs(new_tenant, new_member, database, storage) -> dict[str, str]:
    """One of everything, of another tenant, each with a name."""
    other = new_tenant()
    owner = new_member(Role.OWNER, of=other, subject=SECRET)
    file_id = other.upload(jsonl(*chat_rows(20)), SECRET + ".jsonl").json()["id"]
    task = other.post("/v1/tasks", json=other.spec(file_id, name=SECRET, labels={SECRET: SECRET})).json()["id"]
    sweeps.begin(database, task)
    with database.begin() as session:
        made = adapter(session, storage, jobs_of(session, task)[0], FOLDER)
        webhook = Webhook(id=f"webhook_{task[-8:]}", tenant_id=other.tenant_id, url=f"https://{SECRET}", events=[], secret=b"")
        session.add(webhook)
    key = other.post("/v1/keys", json={"name": SECRET}).json()["id"]
    merged = other.post("/v1/merged-models", json={"adapter_id": made.id}).json()["id"]
    return {
        "merged_id": merged,
        "task_id": task,
        "file_id": file_id,
        "adapter_id": made.id,
        "webhook_id": webhook.id,
        "server_id": other.post("/v1/tracking-servers", json={"name": SECRET, "url": "https://1.1.1.1"}).json()["id"],
        "key_id": key,
        "delivery_id": "d",
        "job_id": "j",
        "user_id": owner.get("/v1/me").json()["user_id"],
        "invitation_id": owner.post("/v1/invitations", json={"email": f"{SECRET}@example.com"}).json()["id"],
        "account_id": owner.post("/v1/service-accounts", json={"name": SECRET}).json()["id"],
    } | ACTS


def test_no_page_opens_without_a_session(app, client):
    fresh = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False)
    routes = [(method, path) for method, path in page_routes(app) if path not in OPEN]
    assert len(routes) > 12
    for method, path in routes:
        answer = asked(fresh, "", method, re.sub(r"{.*?}", "x", path))
        assert answer.status_code == 303, f"{method} {path}: {answer.status_code}"
        assert answer.headers["location"].startswith("/sign-in?next="), path


def test_no_page_shows_another_tenants_things(app, client, new_member, theirs):
    tenant = new_member(Role.OWNER)
    browser, csrf = signed_in(client, tenant.key)
    for method, path in page_routes(app):
        if path in OPEN or path.startswith((*ADMINS, "/account/")):  # what ends the session has no id
            continue
        missing = set(re.findall(r"{(\w+)", path)) - set(theirs)
        assert not missing, f"{path}: give this test an id of another tenant for {missing}"
        answer = asked(
            browser, csrf, method, re.sub(r":\w+}", "}", path).format(**theirs), task=theirs["task_id"], role="viewer"
        )
        assert SECRET not in answer.text, path
        assert answer.status_code < 500, f"{method} {path}: {answer.text}"
        if re.search(r"{\w+_id}", path):
            assert answer.status_code == 404, f"{method} {path}: {answer.status_code}"
    for path in (f"/compare?task={theirs['task_id']}", f"/tasks/new?like={theirs['task_id']}", f"/tasks?text={SECRET[:8]}"):
        answer = browser.get(path)
        assert SECRET not in answer.text
        assert theirs["task_id"] not in answer.text.replace("/compare?task=", "") or answer.status_code == 404


def test_admins_pages_are_admins(app, client, tenant):
    browser, csrf = signed_in(client, tenant.key)
    for method, path in page_routes(app):
        if path.startswith(ADMINS):
            answer = asked(browser, csrf, method, re.sub(r"{.*?}", "x", path))
            assert answer.status_code == 403, f"{method} {path}: {answer.status_code}"


def test_every_form_wants_its_token(app, client, admin, new_member):
    """Of who may send it; others are told that they may not before it is read."""
    browsers = [signed_in(client, key)[0] for key in (admin.key, new_member(Role.OWNER).key)]
    for method, path in page_routes(app):
        if method == "POST" and path != "/sign-in":
            at = re.sub(r"{.*?}", "x", path)
            answers = [browser.post(at, data={"csrf": "0" * 64}) for browser in browsers]
            assert {answer.status_code for answer in answers} == {403}, path
            assert any("csrf_refused" in answer.text for answer in answers), path


def test_others_tasks_have_no_names_in_the_cluster_but_for_admins(client, tenant, admin, theirs):
    browser, _ = signed_in(client, tenant.key)
    seen = browser.get("/cluster").text
    assert SECRET not in seen
    assert theirs["task_id"] not in seen
    ruler, _ = signed_in(client, admin.key)
    assert ruler.get("/cluster").status_code == 200
