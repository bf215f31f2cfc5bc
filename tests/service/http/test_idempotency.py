"""Idempotency-Key: one task however often it is posted, also all at once, also after a crash; and nothing kept of a refusal."""

import asyncio
import hashlib
import json
import secrets
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import select, update

from service.audit.models import AuditEntry
from service.background.retention import delete_in_batches
from service.database.engine import clock
from service.idempotency.idempotency_store import KEPT, Claim, InFlight, StoredAnswer, claim
from service.metrics.health_routes import Health
from service.tasks.models import Task
from service.tenants.api_keys import Principal, Scope
from tests.service.api import PAIR, Caller, jsonl
from tests.service.live_server import PATIENCE, Server


@pytest.fixture
def key() -> dict[str, str]:
    return {"idempotency-key": secrets.token_hex(8)}


def tasks_of(database, tenant) -> list[str]:
    with database.begin() as session:
        return list(session.scalars(select(Task.id).where(Task.tenant_id == tenant.tenant_id)))


def test_the_same_request_is_answered_as_it_was(tenant, database, key):
    spec = tenant.spec(tenant.file())
    first, again = (tenant.post("/v1/tasks", json=spec, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert (again.headers["location"], again.headers["etag"]) == (first.headers["location"], first.headers["etag"])
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert tasks_of(database, tenant) == [first.json()["id"]]
    tenant.post(f"/v1/tasks/{first.json()['id']}/cancel")
    assert tenant.post("/v1/tasks", json=spec, headers=key).json()["status"] == "validating"  # as it was answered


def test_another_request_under_the_key_is_refused(tenant, database, key):
    spec = tenant.spec(tenant.file())
    tenant.post("/v1/tasks", json=spec, headers=key)
    other = tenant.post("/v1/tasks", json=spec | {"priority": 2}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(tasks_of(database, tenant)) == 1


def test_the_key_is_the_tenants_own(tenant, new_tenant, database, key):
    for caller in (tenant, new_tenant()):
        assert caller.post("/v1/tasks", json=caller.spec(caller.file()), headers=key).status_code == 201
    assert len(tasks_of(database, tenant)) == 1


@pytest.mark.parametrize("mistake", [{"priority": 0}, {"base_model": "nobody"}])
def test_a_refusal_is_not_kept(tenant, database, key, mistake):
    spec = tenant.spec(tenant.file())
    assert tenant.post("/v1/tasks", json=spec | mistake, headers=key).status_code == 422
    assert tenant.post("/v1/tasks", json=spec, headers=key).status_code == 201
    assert len(tasks_of(database, tenant)) == 1


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256])
def test_a_key_that_is_none(tenant, bad):
    response = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()), headers={"idempotency-key": bad})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "idempotency-key")


def test_many_at_once_make_one_task(server: Server, tenant, database, key):
    spec = tenant.spec(tenant.file())

    async def post(client: httpx.AsyncClient) -> httpx.Response:
        while True:
            response = await client.post("/v1/tasks", json=spec)
            if response.status_code == 201:
                return response
            assert (response.status_code, response.json()["code"]) == (409, "idempotency_in_flight")
            assert response.headers["retry-after"] == "1"

    async def all_at_once() -> list[httpx.Response]:
        headers = tenant.headers | key
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
            return await asyncio.gather(*(post(client) for _ in range(16)))

    ids = {response.json()["id"] for response in asyncio.run(all_at_once())}
    assert list(ids) == tasks_of(database, tenant)


def fingerprint(spec: object) -> bytes:
    body = json.dumps(spec, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(b"\0".join((b"POST", b"/v1/tasks", body))).digest()


def test_a_request_that_died_is_taken_over_and_cannot_come_back(tenant, database, key):
    spec = tenant.spec(tenant.file())
    who = Principal(tenant.tenant_id, "key", frozenset())
    dead = claim(database, who, key["idempotency-key"], fingerprint(spec))
    assert isinstance(dead, Claim)
    assert tenant.post("/v1/tasks", json=spec, headers=key).json()["code"] == "idempotency_in_flight"
    with database.begin() as session:
        old = clock(session) - timedelta(minutes=2)
        session.execute(update(StoredAnswer).where(StoredAnswer.key == dead.key).values(claimed_at=old))
    made = tenant.post("/v1/tasks", json=spec, headers=key)
    assert made.status_code == 201, made.text
    with pytest.raises(InFlight), database.begin() as session:
        dead.store_answer(session, 201, Health(), {})
    dead.release(database)
    assert tenant.post("/v1/tasks", json=spec, headers=key).json() == made.json()


def test_answers_are_forgotten_after_a_day(tenant, database, key):
    spec = tenant.spec(tenant.file())
    tenant.post("/v1/tasks", json=spec, headers=key)
    with database.begin() as session:
        old = clock(session) - KEPT - timedelta(minutes=1)
        session.execute(update(StoredAnswer).where(StoredAnswer.key == key["idempotency-key"]).values(claimed_at=old))
    assert tenant.post("/v1/tasks", json=spec | {"priority": 2}, headers=key).status_code == 201
    with database.begin() as session:
        session.execute(update(StoredAnswer).where(StoredAnswer.key == key["idempotency-key"]).values(claimed_at=old))
    delete_in_batches(database, StoredAnswer, StoredAnswer.claimed_at <= old)
    with database.begin() as session:
        assert session.scalar(select(StoredAnswer.key).where(StoredAnswer.tenant_id == tenant.tenant_id)) is None


def webhook(admin: Caller) -> str:
    return admin.post("/v1/webhooks", json=WEBHOOK).json()["id"]


def delivery(admin: Caller) -> str:
    parent = f"/v1/webhooks/{webhook(admin)}"
    return f"{parent}/deliveries/{admin.post(f'{parent}/test').json()['id']}/replay"


def part(admin: Caller) -> str:
    return f"/openai/v1/uploads/{admin.post('/openai/v1/uploads', json=UPLOAD).json()['id']}/parts"


UPLOAD = {"bytes": 9, "filename": "x.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
WEBHOOK = {"url": "https://1.1.1.1/hook", "events": ["task.succeeded"]}
FILE = {"files": {"file": ("train.jsonl", jsonl(*[PAIR] * 3))}}
MAKES = {  # beside tasks: the path, made ready by an admin, and the request's body; what is the last one's own is rotated away
    "files": (lambda admin: "/v1/files", FILE),
    "openai_files": (lambda admin: "/openai/v1/files", FILE | {"data": {"purpose": "fine-tune"}}),
    "openai_uploads": (lambda admin: "/openai/v1/uploads", {"json": UPLOAD}),
    "openai_parts": (part, {"files": {"data": ("blob", b"123456789")}}),
    "webhooks": (lambda admin: "/v1/webhooks", {"json": WEBHOOK}),
    "tracking_servers": (lambda admin: "/v1/tracking-servers", {"json": {"name": "lab", "url": "https://1.1.1.1"}}),
    "secrets": (lambda admin: f"/v1/webhooks/{webhook(admin)}/rotate", {}),
    "tests": (lambda admin: f"/v1/webhooks/{webhook(admin)}/test", {}),
    "replays": (delivery, {}),
    "tenants": (lambda admin: "/v1/admin/tenants", {"json": {"name": "twice"}}),
    "keys": (lambda admin: f"/v1/admin/tenants/{admin.tenant_id}/keys", {"json": {"name": "ci"}}),
    "join_tokens": (lambda admin: "/v1/admin/join-tokens", {"json": {"node_name": "gpu-7"}}),
}


@pytest.mark.parametrize("made", MAKES)
def test_a_retry_of_any_post_that_makes_something_makes_it_once(admin, database, key, made):
    place, body = MAKES[made]
    path = place(admin)
    first, again = (admin.post(path, headers=key, **body) for _ in range(2))
    assert first.status_code in (200, 201, 202), first.text
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers.get("idempotency-replayed") == "true"
    with database.begin() as session:
        kept = session.scalars(select(StoredAnswer).where(StoredAnswer.key == key["idempotency-key"])).one()
        assert kept.tenant_id == admin.tenant_id
        secret = first.json().get("secret")
        assert (secret is None) or secret not in json.dumps(kept.body), "a secret that is stored as a hash elsewhere"
        entries = session.scalars(select(AuditEntry).where(AuditEntry.tenant_id == admin.tenant_id)).all()
        assert len([one for one in entries if one.request_id == first.headers["x-request-id"]]) == 1
    other = admin.post(
        path, headers=key, **(body | {"json": {"name": "x", "node_name": "x"}} if "json" in body else {"json": 1})
    )
    assert other.status_code in (400, 422), other.text


def test_every_post_that_makes_something_takes_a_key(client):
    """By the document: 201 and 202 are what makes something."""
    document = client.get("/openapi.json").json()
    without = [
        path
        for path, methods in document["paths"].items()
        if (operation := methods.get("post")) is not None
        and {"201", "202"} & operation["responses"].keys()
        and "idempotency-key" not in [parameter["name"].lower() for parameter in operation.get("parameters", [])]
    ]
    assert without == []


def test_a_key_of_a_scope_that_may_not_claims_nothing(new_tenant, database, key):
    reader = new_tenant(Scope.READ)
    assert reader.post("/v1/webhooks", json=WEBHOOK, headers=key).status_code == 403
    assert reader.post("/v1/admin/tenants", json={"name": "no"}, headers=key).status_code == 403
    with database.begin() as session:
        assert session.scalar(select(StoredAnswer).where(StoredAnswer.key == key["idempotency-key"])) is None
