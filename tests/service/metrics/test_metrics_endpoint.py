"""/metrics: who may read it, and that what it tells is what happened."""

import secrets

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from service.database.engine import clock
from service.tasks.models import Task
from service.tenants.api_keys import Scope
from tests.service.scraped import samples


@pytest.fixture
def scrape(admin):
    return lambda: samples(admin.get("/metrics"))


def test_only_an_admin_reads_them(new_tenant, client):
    assert client.get("/metrics").status_code == 401
    refused = new_tenant(Scope.READ, Scope.WRITE).get("/metrics")
    assert (refused.status_code, refused.json()["needs"]) == (403, "admin")
    told = new_tenant(Scope.ADMIN).get("/metrics")
    assert told.headers["content-type"].startswith("text/plain")


def test_a_token_of_its_own_opens_nothing_else(new_database_url, settings_for, tmp_path, serve):
    token = secrets.token_hex(32)
    caller = serve(settings_for(new_database_url, tmp_path, metrics_token=SecretStr(token)))
    headers = {"Authorization": f"Bearer {token}"}
    assert caller.client.get("/metrics", headers=headers).status_code == 200
    assert caller.client.get("/v1/tasks", headers=headers).status_code == 401
    assert caller.client.get("/metrics", headers={"Authorization": f"Bearer {token[:-1]}x"}).status_code == 401
    assert caller.get("/metrics").status_code == 200  # an admin's key works beside it


def test_requests_are_counted_by_route_and_not_by_id(tenant, scrape):
    before = scrape()
    for number in range(3):
        tenant.get(f"/v1/tasks/task_{number}")
    tenant.get("/v1/files")
    tenant.get("/nowhere/at/all")
    after = scrape()
    counted = ("motet_api_requests_total", "GET", "/v1/tasks/{task_id}", "404")
    assert after[counted] - before.get(counted, 0) == 3
    assert after["motet_api_requests_total", "GET", "/v1/files", "200"] >= 1
    assert ("motet_api_requests_total", "GET", "(none)", "404") in after
    assert not any("task_1" in str(key) for key in after)
    assert after["motet_api_request_seconds_count", "GET", "/v1/tasks/{task_id}"] >= 3
    assert after["motet_api_database_connections", "app"] >= 0


def test_the_house_is_told_from_rows(tenant, scrape):
    before = scrape()
    task = tenant.task()
    after = scrape()
    assert after["motet_tasks", "validating"] - before.get(("motet_tasks", "validating"), 0) == 1
    assert after["motet_jobs", "pending"] - before.get(("motet_jobs", "pending"), 0) == 2
    assert after["motet_queue_validating_age_seconds",] >= 0
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert scrape()["motet_tasks", "cancelled"] - before.get(("motet_tasks", "cancelled"), 0) == 1
    for name in (
        *("motet_scheduler_requests", "motet_scheduler_slowest_plan_seconds", "motet_devices", "motet_devices_in_use"),
        *("motet_executor_trained_tokens_total", "motet_executor_gpu_seconds_total", "motet_nodes_oldest_heartbeat_seconds"),
    ):
        assert (name,) in after


def test_no_tenant_is_named(tenant, scrape):
    task = tenant.task()
    said = str(scrape())
    assert tenant.tenant_id not in said
    assert task["id"] not in said


def test_gpus_wanted_are_those_of_queued_tasks(tenant, scrape, database):
    wanted = ("motet_gpus_wanted", "any", "1")
    before, task = scrape().get(wanted, 0), tenant.task()
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task["id"]).values(status="queued", queued_at=clock(session)))
    after = scrape()
    assert after[wanted] - before == 1
    assert after["motet_nodes_in_trouble", "quarantined"] == 0
    assert after["motet_storage_free_bytes",] > 0
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert scrape().get(wanted, 0) == before
