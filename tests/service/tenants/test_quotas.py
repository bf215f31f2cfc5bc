"""Quotas: counted from rows, refused apart from rates, exact when many ask at once; and what a tenant is told of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, update

from contract.states import TaskStatus
from service.database.engine import clock, new_id
from service.fleet.models import Node, Placement
from service.settings import Settings
from service.tasks.models import Task
from service.tenants.models import Tenant
from service.usage import quotas
from service.usage.models import TaskUsageRecord, TenantUsage
from tests.service.api import chat_rows, jsonl
from tests.service.sample_tasks import adapter, jobs_of, placement

UNLIMITED = {"running_gpus": None, "queued_tasks": 1000, "stored_bytes": None, "month_tokens": None}


def test_the_last_tasks_before_a_limit_are_as_many_as_all_processes_make_at_once():
    bounds = Settings.model_fields["api_processes"].metadata
    assert quotas.MAX_SHARED_TASKS * next(bound.le for bound in bounds if hasattr(bound, "le")) <= quotas._NEAR


@pytest.fixture
def limit(database, tenant):
    """Set quotas of this test's tenant: `limit(queued_tasks=2)`."""

    def change(**quotas: int | None) -> None:
        values = {f"{name}_quota": value for name, value in quotas.items()}
        with database.begin() as session:
            session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(values))

    return change


def refused(response, quota: str, limit: int, used: int) -> None:
    assert response.status_code == 403, response.text
    body = response.json()
    assert (body["code"], body["quota"], body["limit"], body["used"]) == ("quota_exceeded", quota, limit, used)
    assert "retry-after" not in response.headers  # waiting alone does not help


def test_tasks_beyond_the_queue_are_refused_until_one_leaves(tenant, limit):
    limit(queued_tasks=2)
    first, _ = tenant.task(), tenant.task()
    refused(tenant.post("/v1/tasks", json=tenant.spec(tenant.file())), "queued_tasks", 2, 2)
    assert tenant.get("/v1/tasks").json()["next_cursor"] is None
    tenant.post(f"/v1/tasks/{first['id']}/cancel")
    tenant.task()


def test_many_at_once_do_not_slip_through(tenant, limit):
    limit(queued_tasks=3)
    spec = tenant.spec(tenant.file())
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: tenant.post("/v1/tasks", json=spec).status_code, range(8)))
    assert sorted(statuses) == [201] * 3 + [403] * 5


def test_bytes_beyond_the_store_are_refused_before_and_after_they_came(tenant, limit):
    content = jsonl(*chat_rows(10))
    limit(stored_bytes=len(content) + 5)
    file = tenant.upload(content).json()
    refused(tenant.upload(jsonl(*chat_rows(1))), "stored_bytes", len(content) + 5, len(content))
    limit(stored_bytes=len(content))
    refused(tenant.upload(b"x" * 2**21), "stored_bytes", len(content), len(content))  # nothing of it was read
    assert tenant.delete(f"/v1/files/{file['id']}").status_code == 204
    assert tenant.upload(content).status_code == 201


def test_adapters_count_as_stored(tenant, database, storage):
    task = tenant.task()
    before = tenant.get("/v1/quotas").json()["stored_bytes"]["used"]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, task["id"])[0], {"a": b"x" * 100, "b": b"y" * 23})
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == before + 123


def test_adapters_of_deleted_tasks_count_no_more(tenant, database, storage):
    kept, gone = tenant.task(), tenant.task()
    before = tenant.get("/v1/quotas").json()["stored_bytes"]["used"]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, kept["id"])[0], {"a": b"x" * 7})
        first, second = jobs_of(session, gone["id"])[:2]
        adapter(session, storage, first, {"a": b"y" * 20})
        adapter(session, storage, second, {"a": b"z" * 300}).deleted_at = clock(session)
    assert tenant.post(f"/v1/tasks/{gone['id']}/cancel").status_code == 200
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == before + 27
    assert tenant.delete(f"/v1/tasks/{gone['id']}").status_code == 204
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == before + 7


def test_checkpoints_of_open_tasks_count_as_stored(tenant, database):
    tasks = [tenant.task() for _ in range(2)]
    before = tenant.get("/v1/quotas").json()["stored_bytes"]["used"]
    with database.begin() as session:
        for task, size in zip(tasks, (1000, 20), strict=True):
            jobs_of(session, task["id"])[1].checkpoint = {"sha256": "c" * 64, "bytes": size, "step": 3}
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == before + 1020
    tenant.post(f"/v1/tasks/{tasks[0]['id']}/cancel")
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == before + 20


def test_a_running_task_that_fills_the_store_ends_and_only_new_ones_are_refused(tenant, limit, database, storage):
    """What a task stores is never refused: its work would be lost. What is new waits until something is deleted."""
    file = tenant.file()
    running = tenant.post("/v1/tasks", json=tenant.spec(file)).json()["id"]
    stored = tenant.get("/v1/quotas").json()["stored_bytes"]["used"]
    limit(stored_bytes=stored + 100)
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == running).values(status=TaskStatus.RUNNING))
        kept = adapter(session, storage, jobs_of(session, running)[0], {"a": b"x" * 150}).id
    refused(tenant.post("/v1/tasks", json=tenant.spec(file)), "stored_bytes", stored + 100, stored + 150)
    refused(tenant.upload(jsonl(*chat_rows(1))), "stored_bytes", stored + 100, stored + 150)
    assert tenant.post(f"/v1/tasks/{running}/pause").status_code == 200
    assert tenant.post(f"/v1/tasks/{running}/cancel").status_code == 200
    assert tenant.delete(f"/v1/adapters/{kept}").status_code == 204
    assert tenant.post("/v1/tasks", json=tenant.spec(file)).status_code == 201
    assert tenant.upload(b"{}").status_code == 422, "the file may be read again, and is wrong"


def test_a_months_tokens(tenant, limit, database):
    task = tenant.task()
    limit(month_tokens=1000)
    with database.begin() as session:
        placement(session, task["id"], tokens=999)
    tenant.task()
    with database.begin() as session:
        placement(session, task["id"], tokens=1)
    refused(tenant.post("/v1/tasks", json=tenant.spec(tenant.file())), "month_tokens", 1000, 1000)
    with database.begin() as session:  # a month later
        for model in (TaskUsageRecord, TenantUsage):
            session.execute(update(model).values(month=model.month - func.make_interval(0, 1)))
    tenant.task()


def test_gpus_in_use_count_by_what_they_can_do(tenant, limit, database):
    """Beside an H100 an A100 counts 0.4, a CPU slot nothing; on nodes of one type alone each device is one."""
    held = {"NVIDIA A100-SXM4-80GB": 4, "cpu": 16}
    for kind, number in held.items():
        task = tenant.task()
        with database.begin() as session:
            placement(session, task["id"], tokens=1, devices=number, ended=False)
            session.flush()
            node = session.scalars(select(Node).join(Placement).where(Placement.task_id == task["id"])).one()
            node.devices = [{"index": at, "type": kind, "memory_bytes": 1} for at in range(number)]
    limit(running_gpus=4)
    assert tenant.get("/v1/quotas").json()["running_gpus"] == {"limit": 4, "used": 4}, "the fastest of what there is"
    fast = {"index": 0, "type": "NVIDIA H100 80GB HBM3", "memory_bytes": 1}
    with database.begin() as session:
        session.add(
            Node(id="node_fast", name="fast", boot_id="b", status="ready", devices=[fast], versions={}, credential_hash=b"")
        )
    assert tenant.get("/v1/quotas").json()["running_gpus"] == {"limit": 4, "used": 2}, "1.6, rounded up"
    with database.begin() as session:
        session.execute(update(Node).values(status="lost"))


def test_what_a_tenant_is_told(tenant, limit, database):
    task = tenant.task()
    stored = tenant.get("/v1/files").json()["data"][0]["bytes"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task["id"]).values(status=TaskStatus.RUNNING))
    with database.begin() as session:
        placement(session, task["id"], tokens=50, devices=2, ended=False)
    limit(running_gpus=4)
    assert tenant.get("/v1/quotas").json() == {
        "object": "quotas",
        "running_gpus": {"limit": 4, "used": 2},
        "queued_tasks": {"limit": 1000, "used": 0},
        "stored_bytes": {"limit": None, "used": stored},
        "month_tokens": {"limit": None, "used": 50},
    }


def test_an_admin_sets_them(admin):
    made = admin.post("/v1/admin/tenants", json={"name": new_id("team"), "quotas": {"running_gpus": 2}}).json()
    assert made["quotas"] == UNLIMITED | {"running_gpus": 2}
    path = f"/v1/admin/tenants/{made['id']}"
    changed = admin.request("PATCH", path, json={"weight": 3, "quotas": {"stored_bytes": 2**50}}).json()
    assert (changed["weight"], changed["quotas"]) == (3, UNLIMITED | {"stored_bytes": 2**50})
    assert admin.request("PATCH", path, json={}).json() == changed
    assert admin.request("PATCH", "/v1/admin/tenants/none", json={}).status_code == 404
    wrong = admin.request("PATCH", path, json={"quotas": {"queued_tasks": -1, "month_tokens": 2**63}})
    assert {error["field"] for error in wrong.json()["errors"]} == {"quotas.queued_tasks", "quotas.month_tokens"}
    null = admin.request("PATCH", path, json={"weight": None, "quotas": None, "max_slowdown": None})
    assert {error["field"] for error in null.json()["errors"]} == {"weight", "quotas"}
