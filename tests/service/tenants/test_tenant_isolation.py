"""Who may do what: keys, scopes, and that no route shows a tenant anything of another's, asked of every route there is."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select, update

from contract.states import TaskStatus
from service.database.engine import clock, new_id
from service.tasks.models import Task
from service.tenants.api_keys import Scope
from service.tenants.member_roles import Role
from service.tenants.models import ApiKey
from service.web.page_route import PageRoute
from service.webhooks.models import Webhook
from service.webhooks.webhook_messages import EventType, enqueue_message
from tests.service.api import Caller, jsonl
from tests.service.sample_tasks import adapter, chunk, hub_push, jobs_of

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
ADMINS = ("/v1/admin/", "/metrics")
OPEN = {"/livez", "/readyz", "/openapi.json", "/v1/sign-in", "/v1/sign-in/device", "/v1/sign-in/device/token"}
READING = ("GET", "HEAD")
READING_POSTS = {"/v1/tasks/estimate", "/v1/batches/estimate", "/v1/files/preview", "/v1/sign-in-links"}
UPLOAD = {"bytes": 9, "filename": "x.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
SHARED = ("/v1/models", "/openai/v1/models")  # the allow-list is everybody's


def code_of(response) -> str:
    """The problem's code, in the words of either face; an answer to HEAD has no body that could tell it."""
    if response.request.method == "HEAD":
        return {403: "scope_missing", 404: "not_found"}[response.status_code]
    said = response.json()
    return said["error"]["code"] if "error" in said else said["code"]


def public_routes(routes) -> list[tuple[str, str]]:
    """Every method and path of the API that a tenant could call. Pages are asked in tests/service/web."""
    found = []
    for route in routes:
        if isinstance(route, PageRoute) or getattr(route, "path", "").startswith("/static/"):
            continue
        if isinstance(route, APIRoute):
            found += [(method, route.path) for method in route.methods if not route.path.startswith("/internal/")]
        elif hasattr(route, "original_router"):
            found += public_routes(route.original_router.routes)
    return found


@pytest.fixture
def belongings(new_tenant, new_member, database, storage) -> dict[str, str]:
    """One of everything, of another tenant: path parameter -> id."""
    other = new_tenant()
    owner = new_member(Role.OWNER, of=other)
    task = other.task()
    with database.begin() as session:
        job = jobs_of(session, task["id"])[0]
        chunk(session, job, "val_loss", [1], [1.0])
        made = adapter(session, storage, job, FILES)
        webhook = Webhook(id=new_id("webhook"), tenant_id=other.tenant_id, url="https://x.example", events=[], secret=b"")
        session.add(webhook)
        session.flush()
        push = hub_push(session, other.tenant_id)
        delivery = enqueue_message(session, webhook, EventType.TEST, {}, clock(session))
    batch = other.post("/v1/batches", json={"tasks": [other.spec(task["spec"]["dataset"]["file_id"])]})
    assert batch.status_code == 201, batch.text
    ids = {
        "task_id": task["id"],
        "batch_id": batch.json()["id"],
        "job_id": job.id,
        "file_id": task["spec"]["dataset"]["file_id"],
        "adapter_id": made.id,
        "checkpoint": made.id,
        "permission_id": "cp_1",
        "upload_id": other.post("/openai/v1/uploads", json=UPLOAD).json()["id"],
        "path": "adapter_config.json",
        "file": "config.json",
        "webhook_id": webhook.id,
        "server_id": other.post("/v1/tracking-servers", json={"name": "lab", "url": "https://1.1.1.1"}).json()["id"],
        "delivery_id": delivery.id,
        "merged_id": other.post("/v1/merged-models", json={"adapter_id": made.id}).json()["id"],
        "push_id": push.id,
        "key_id": other.get("/v1/keys").json()["data"][0]["id"],
        "user_id": owner.get("/v1/me").json()["user_id"],
        "invitation_id": owner.post("/v1/invitations", json={}).json()["id"],
        "account_id": owner.post("/v1/service-accounts", json={"name": "ci"}).json()["id"],
    }
    for path in (
        "tasks/{task_id}",
        "batches/{batch_id}",
        "jobs/{job_id}",
        "files/{file_id}/content",
        "adapters/{adapter_id}/files/{path}",
        "webhooks/{webhook_id}",
        "tracking-servers/{server_id}",
        "merged-models/{merged_id}",
        "hub-pushes/{push_id}",
    ):
        assert other.get("/v1/" + path.format(**ids)).status_code == 200  # they are there, for their owner
    return ids


BODIES = {
    "/openai/v1/uploads/{upload_id}/complete": {"part_ids": ["part_1"]},
    "/v1/members/{user_id}": {"role": "viewer"},
    "/v1/service-accounts/{account_id}": {"role": "viewer"},
    "/openai/v1/fine_tuning/checkpoints/{checkpoint:path}/permissions": {"project_ids": ["proj_1"]},
}


def test_every_route_with_an_id_is_a_404_to_another_tenant(app, new_member, belongings):
    tenant = new_member(Role.OWNER)
    scoped = [
        (method, path)
        for method, path in public_routes(app.routes)
        if "{" in path and not path.startswith(ADMINS) and not path.startswith(SHARED)
    ]
    assert len(scoped) >= 25
    for method, path in scoped:
        names = set(re.findall(r"{(\w+)", path))
        assert names <= set(belongings), f"{path}: give this test an id of another tenant for it"
        body = {"json": BODIES.get(path, {})} if method in ("PATCH", "POST") else {}
        response = tenant.request(method, re.sub(r":\w+}", "}", path).format(**belongings), **body)
        assert response.status_code == 404, f"{method} {path}: {response.status_code} {response.text}"
        assert code_of(response) == "not_found", f"{method} {path}: {response.text}"


def test_no_list_shows_another_tenants_things(app, new_member, belongings):
    tenant = new_member(Role.OWNER)
    lists = [
        path
        for method, path in public_routes(app.routes)
        if method == "GET" and "{" not in path and path not in OPEN and not path.startswith(ADMINS + SHARED)
    ]
    openai = {"/openai/v1/files", "/openai/v1/fine_tuning/jobs"}
    native = {"/v1/tasks", "/v1/files", "/v1/adapters", "/v1/webhooks", "/v1/audit", "/v1/usage", "/v1/schedule"}
    assert set(lists) >= native | openai
    for path in lists:
        answer = tenant.get(path).text
        if path not in ("/v1/keys", "/v1/members", "/v1/invitations", "/v1/me"):  # which list whoever asks
            assert '"data":[]' in answer or '"data"' not in answer, f"{path}: {answer}"
        assert not [id for id in belongings.values() if id in answer], path


def test_the_schedule_counts_another_tenants_tasks_without_naming_them(tenant, new_tenant, database):
    other = new_tenant()
    id = other.task()["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == id).values(status=TaskStatus.QUEUED, queued_at=datetime.now(UTC)))
    (theirs,) = [waiting for waiting in other.get("/v1/schedule").json()["waiting"] if waiting["task_id"] == id]
    assert theirs["gpus"] == 1
    seen = tenant.get("/v1/schedule").json()
    assert seen["waiting_total"] >= 1
    assert {(waiting["task_id"], waiting["name"], waiting["sentence"]) for waiting in seen["waiting"]} == {(None, None, None)}


def test_a_foreign_cursor_leads_nowhere(tenant, new_tenant):
    other = new_tenant()
    for _ in range(3):
        other.file()
    cursor = other.get("/v1/files?limit=1").json()["next_cursor"]
    assert tenant.get("/v1/files", params={"cursor": cursor}).json()["data"] == []


def test_every_route_wants_a_key(app, client):
    for method, path in public_routes(app.routes):
        if path in OPEN:
            continue
        response = client.request(method, re.sub(r"{.*?}", "x", path))
        assert response.status_code == 401, f"{method} {path}: {response.status_code}"


def test_every_route_wants_its_scope(app, new_tenant):
    callers = {scope: new_tenant(scope) for scope in Scope}
    for method, path in public_routes(app.routes):
        if path in OPEN:
            continue
        reads = method in READING or path in READING_POSTS
        of_operators = path.startswith(ADMINS) or (method, path) == ("POST", "/v1/models")  # the allow-list is an operator's
        needed = Scope.ADMIN if of_operators else Scope.READ if reads else Scope.WRITE
        for scope, caller in callers.items():
            response = caller.request(method, re.sub(r"{.*?}", "x", path))
            refused = response.status_code == 403 and code_of(response) == "scope_missing"
            assert refused == (scope != needed), f"{method} {path} with {scope}: {response.status_code}"
            if refused and method != "HEAD":
                assert f"'{needed}'" in response.text


def test_a_key_that_nobody_knows_is_refused(client):
    for header in ("Bearer mk_nonsense", "Bearer ", "Basic abc", "mk_x"):
        response = client.get("/v1/tasks", headers={"authorization": header})
        assert response.status_code == 401
        assert response.json()["code"] in ("key_missing", "key_refused")


def test_a_key_is_stored_as_its_hash_alone(tenant, database):
    with database.begin() as session:
        key = session.scalars(select(ApiKey).where(ApiKey.tenant_id == tenant.tenant_id)).one()
        assert tenant.key.encode() not in key.hash
        assert len(key.hash) == 32
        assert tenant.key not in (key.id, key.name)


def test_an_admin_makes_tenants_and_keys(admin: Caller, client):
    made = admin.post("/v1/admin/tenants", json={"name": f"new of {admin.tenant_id}", "weight": 2})
    assert made.status_code == 201, made.text
    tenant = made.json()
    assert tenant in admin.get("/v1/admin/tenants?limit=100").json()["data"]
    assert admin.post("/v1/admin/tenants", json={"name": tenant["name"]}).json()["code"] == "name_taken"

    key = admin.post(f"/v1/admin/tenants/{tenant['id']}/keys", json={"name": "ci", "scopes": ["write", "read"]}).json()
    assert key["scopes"] == ["read", "write"]
    caller = Caller(client, tenant["id"], key.pop("secret"))
    assert caller.file()
    shown = admin.get(f"/v1/admin/tenants/{tenant['id']}/keys").json()["data"]
    assert shown == [key | {"secret": None}]  # and never the secret again

    revoked = admin.delete(f"/v1/admin/keys/{key['id']}")
    assert revoked.json()["revoked_at"]
    assert admin.delete(f"/v1/admin/keys/{key['id']}").json() == revoked.json()
    refused = caller.get("/v1/tasks")
    assert (refused.status_code, refused.json()["reason"]) == (401, "revoked")


def test_a_key_expires(app, admin: Caller, client, database):
    path = f"/v1/admin/tenants/{admin.tenant_id}/keys"
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    refused = admin.post(path, json={"expires_at": past})
    assert refused.json()["errors"][0]["field"] == "expires_at"
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    key = admin.post(path, json={"expires_at": soon}).json()
    caller = Caller(client, admin.tenant_id, key["secret"])
    assert caller.get("/v1/tasks").status_code == 200
    with database.begin() as session:
        session.execute(
            update(ApiKey).where(ApiKey.id == key["id"]).values(expires_at=datetime.now(UTC) - timedelta(seconds=1))
        )
    app.state.motet.keys.forget()  # as happens by itself within seconds
    assert caller.get("/v1/tasks").json()["reason"] == "expired"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("tenants", {"name": ""}, "name"),
        ("tenants", {"name": "a\0b"}, "name"),
        ("tenants", {"name": "x", "weight": 0}, "weight"),
        ("tenants/{tenant}/keys", {"scopes": []}, "scopes"),
        ("tenants/{tenant}/keys", {"scopes": ["root"]}, "scopes[0]"),
        ("tenants/{tenant}/keys", {"expires_at": "2026-01-01T00:00:00"}, "expires_at"),
    ],
)
def test_an_admins_mistakes_name_their_field(admin, path, body, field):
    response = admin.post("/v1/admin/" + path.format(tenant=admin.tenant_id), json=body)
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, field)


def test_what_an_admin_does_not_find(admin):
    assert admin.post("/v1/admin/tenants/none/keys", json={}).status_code == 404
    assert admin.get("/v1/admin/tenants/none/keys").status_code == 404
    assert admin.delete("/v1/admin/keys/none").status_code == 404


def test_two_tenants_may_have_the_same_bytes(tenant, new_tenant):
    other = new_tenant()
    content = jsonl({"prompt": "same", "completion": "bytes"})
    mine, theirs = (caller.upload(content).json() for caller in (tenant, other))
    assert mine["sha256"] == theirs["sha256"]
    assert tenant.delete(f"/v1/files/{mine['id']}").status_code == 204
    assert other.get(f"/v1/files/{theirs['id']}/content").content == content
