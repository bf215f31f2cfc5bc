"""The audit log: every route that writes leaves an entry, in the transaction that wrote; so does every read of an adapter."""

import contextlib
import re

import pytest
from sqlalchemy import select

from service.audit.audit_trail import Note
from service.audit.models import AuditEntry
from service.database.engine import Database
from service.files.models import File
from service.tenants.api_keys import Principal, Scope
from tests.service.sample_tasks import adapter, jobs_of


def entries(caller, **query) -> list[dict]:
    return caller.get("/v1/audit", params=query).json()["data"]


@pytest.fixture
def finished(tenant, database, storage):
    """A task with an adapter: their ids."""
    task = tenant.task()
    with database.begin() as session:
        job = jobs_of(session, task["id"])[0]
        made = adapter(session, storage, job, {"adapter_config.json": b"{}", "adapter_model.safetensors": b"w"})
        task_row = job.task
        task_row.status, task_row.winner_job_id = "succeeded", job.id
    return task["id"], made.id


def test_what_a_tenant_did_is_told_newest_first(tenant):
    file_id = tenant.file()
    made = tenant.post("/v1/tasks", json=tenant.spec(file_id), headers={"x-request-id": "mine-1"}).json()
    tenant.get(f"/v1/tasks/{made['id']}")
    tenant.post(f"/v1/tasks/{made['id']}/cancel")
    told = entries(tenant)
    assert [entry["action"] for entry in told] == ["cancel_task", "create_task", "create_file"]
    assert [entry["targets"] for entry in told] == [[made["id"]], [made["id"]], [file_id]]
    assert told[1]["request_id"] == "mine-1"
    assert {entry["tenant_id"] for entry in told} == {tenant.tenant_id}
    assert [entry["action"] for entry in entries(tenant, action="create_file")] == ["create_file"]


def test_what_failed_or_changed_nothing_is_not_told(tenant):
    task = tenant.task()
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    before = entries(tenant)
    assert tenant.post(f"/v1/tasks/{task['id']}/cancel").status_code == 200  # it was cancelled already
    assert tenant.post("/v1/tasks", json=tenant.spec("file_none")).status_code == 422
    assert tenant.delete("/v1/files/file_none").status_code == 404
    assert entries(tenant) == before


def test_every_read_of_an_adapter_is_told(tenant, finished):
    task_id, adapter_id = finished
    reads = {
        f"/v1/adapters/{adapter_id}": ("get_adapter", [adapter_id]),
        f"/v1/adapters/{adapter_id}/files/adapter_config.json": ("get_adapter_file", [adapter_id, "adapter_config.json"]),
        f"/v1/adapters/{adapter_id}/archive": ("get_adapter_archive", [adapter_id]),
        f"/v1/tasks/{task_id}/adapter": ("get_task_adapter", [task_id]),
    }
    for path, told in reads.items():
        assert tenant.get(path).status_code == 200
        (entry, *_) = entries(tenant)
        assert (entry["action"], entry["targets"]) == told


def test_no_route_that_hands_out_an_adapter_goes_without(app):
    silent = [
        (path, operation["operationId"])
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
        if method == "get" and re.search(r"adapter_id}|/adapter$", path)
    ]
    assert {operation for _, operation in silent} == {
        "get_adapter",
        "get_adapter_file",
        "get_adapter_archive",
        "get_task_adapter",
    }, "a new way to read an adapter: give it NotedDb and add it to the test above"


def test_what_admins_do_is_told_to_admins(admin, tenant):
    made = admin.post("/v1/admin/tenants", json={"name": f"team {admin.tenant_id}"}).json()
    key = admin.post(f"/v1/admin/tenants/{made['id']}/keys", json={}).json()
    admin.delete(f"/v1/admin/keys/{key['id']}")
    told = admin.get("/v1/admin/audit", params={"tenant_id": admin.tenant_id}).json()["data"]
    assert [(entry["action"], entry["targets"]) for entry in told] == [
        ("revoke_key", [key["id"]]),
        ("create_key", [made["id"], key["id"]]),
        ("create_tenant", [made["id"]]),
    ]
    assert entries(tenant) == []
    assert key["secret"] not in str(told)


def test_an_entry_comes_and_goes_with_what_it_tells_of(settings, tenant):
    db = Database(settings.app_database_url, pool_size=1)
    note = Note(Principal(tenant.tenant_id, "key_x", frozenset(Scope)), "rename", ["file_x"], "req_x")
    tenant.file()
    before = entries(tenant)
    with contextlib.suppress(ZeroDivisionError), db.for_tenant(tenant.tenant_id, note).begin() as session:
        session.scalars(select(File)).one().name = "other"
        session.flush()
        raise ZeroDivisionError
    assert entries(tenant) == before
    with db.for_tenant(tenant.tenant_id, note).begin() as session:
        session.scalars(select(File)).one().name = "other"
    assert [entry["action"] for entry in entries(tenant)] == ["rename", "create_file"]
    with db.for_tenant(tenant.tenant_id, note).begin() as session:
        session.scalars(select(AuditEntry)).all()
    assert len(entries(tenant)) == 2
    db.engine.dispose()
