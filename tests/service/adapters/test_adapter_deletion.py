"""DELETE /v1/adapters: what goes, what says so, and who keeps an adapter from being deleted."""

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from contract.states import JobStatus
from service.adapters.models import Adapter
from service.background.garbage_collection import KEPT_SECONDS, sweep
from service.background.retention import Retention, forget
from service.tasks.models import Task
from service.tenants.api_keys import Scope
from tests.service.sample_tasks import adapter, jobs_of

FILES = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"weights of nobody else"}


@pytest.fixture
def won(tenant, database, storage):
    """A task that succeeded; the ids of the task and of the winner's adapter."""
    task_id = tenant.task()["id"]
    with database.begin() as session:
        job = jobs_of(session, task_id)[1]
        job.status = JobStatus.COMPLETED
        model = {**FILES, "adapter_model.safetensors": task_id.encode()}
        made = adapter(session, storage, job, model, val_loss=0.75)
        revision = session.get_one(Task, task_id).base_revision
        made.manifest = made.manifest | {"lineage": made.manifest["lineage"] | {"base_revision": revision}}
        session.execute(update(Task).where(Task.id == task_id).values(status="succeeded", winner_job_id=job.id))
    return task_id, made.id


def test_a_winner_is_deleted_and_its_task_says_so(tenant, won):
    task_id, adapter_id = won
    before = tenant.get(f"/v1/tasks/{task_id}")
    used = tenant.get("/v1/quotas").json()["stored_bytes"]["used"]
    size = tenant.get(f"/v1/adapters/{adapter_id}").json()["bytes"]
    assert before.json()["winner"]["adapter_deleted_at"] is None
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204

    after = tenant.get(f"/v1/tasks/{task_id}")
    assert after.headers["etag"] != before.headers["etag"]
    winner = after.json()["winner"]
    assert (winner["adapter_id"], after.json()["status"]) == (adapter_id, "succeeded")
    assert winner["adapter_deleted_at"] is not None
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == used - size
    assert tenant.get("/v1/adapters").json()["data"] == []
    assert [job["adapter_id"] for job in tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"]] == [None, None]
    for path in ("", "/archive", "/files/adapter_config.json"):
        gone = tenant.get(f"/v1/adapters/{adapter_id}{path}")
        assert (gone.status_code, gone.json()["code"]) == (404, "adapter_deleted"), path
    gone = tenant.get(f"/v1/tasks/{task_id}/adapter")
    assert (gone.status_code, gone.json()["code"]) == (404, "adapter_deleted")
    assert gone.json()["deleted_at"] == winner["adapter_deleted_at"].replace("Z", "+00:00")


def test_twice_is_once_and_the_log_has_it(tenant, won, database):
    _, adapter_id = won
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204
    with database.begin() as session:
        when = session.get_one(Adapter, adapter_id).deleted_at
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204
    with database.begin() as session:
        assert session.get_one(Adapter, adapter_id).deleted_at == when
    (entry,) = tenant.get("/v1/audit", params={"action": "delete_adapter"}).json()["data"]
    assert entry["targets"] == [adapter_id]


@pytest.mark.parametrize("scopes", [(Scope.READ,), (Scope.ADMIN,)])
def test_it_needs_the_right_to_write(new_tenant, scopes):
    refused = new_tenant(*scopes).delete("/v1/adapters/adapter_0")
    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")


@pytest.mark.parametrize("id", ["adapter_0", "task_1", "x" * 300])
def test_what_is_not_there_is_not_deleted(tenant, id):
    assert tenant.delete(f"/v1/adapters/{id}").status_code == 404


def test_another_tenants_is_not_there(won, new_tenant, database):
    _, adapter_id = won
    refused, unknown = (new_tenant().delete(f"/v1/adapters/{id}") for id in (adapter_id, "adapter_none"))
    assert refused.status_code == unknown.status_code == 404
    assert refused.json()["detail"] == unknown.json()["detail"].replace("adapter_none", adapter_id)
    with database.begin() as session:
        assert session.get_one(Adapter, adapter_id).deleted_at is None


def test_its_bytes_go_with_the_next_sweep_and_others_stay(tenant, won, database, storage):
    _, adapter_id = won
    with database.begin() as session:
        files = session.get_one(Adapter, adapter_id).folder.files
    own, shared = (next(f.sha256 for f in files if f.path == name) for name in reversed(FILES))
    other = tenant.task()["id"]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, other)[0], {"adapter_config.json": FILES["adapter_config.json"]})
    assert shared == hashlib.sha256(FILES["adapter_config.json"]).hexdigest()
    tenant.delete(f"/v1/adapters/{adapter_id}")
    for sha256 in (own, shared):
        os.utime(storage.path(sha256), (time.time() - KEPT_SECONDS - 60,) * 2)
    sweep(database, storage)
    assert (storage.exists(own), storage.exists(shared)) == (False, True)
    with database.begin() as session:
        assert session.get(Adapter, adapter_id) is not None, "its task says what became of it"


@pytest.mark.parametrize("status", ["validating", "queued", "running", "paused"])
def test_it_stays_while_a_task_starts_from_it(tenant, won, database, status):
    _, adapter_id = won
    tasks = [tenant.task(warm_start={"adapter_id": adapter_id})["id"] for _ in range(2)]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id.in_(tasks)).values(status=status))
    refused = tenant.delete(f"/v1/adapters/{adapter_id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "adapter_in_use")
    assert refused.json()["tasks"] == sorted(tasks)
    assert all(task in refused.json()["detail"] for task in tasks)
    for task in tasks:
        assert tenant.post(f"/v1/tasks/{task}/cancel").status_code == 200
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204
    again = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), warm_start={"adapter_id": adapter_id}))
    (error,) = again.json()["errors"]
    assert (again.status_code, error["code"]) == (422, "adapter_unknown")
    with database.begin() as session:
        when = session.get_one(Adapter, adapter_id).deleted_at
    assert f"{adapter_id} was deleted on {when:%Y-%m-%d %H:%M:%S} UTC" in error["message"]


def test_whoever_asks_for_its_texts_or_trains_on_it_is_told_when_it_was_deleted(tenant, won):
    _, adapter_id = won
    name = next(one["id"] for one in tenant.get("/openai/v1/models").json()["data"] if one["id"].endswith(adapter_id))
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204
    for model in (name, adapter_id):
        chat = {"model": model, "messages": [{"role": "user", "content": "2 + 2?"}]}
        asked = tenant.post("/openai/v1/chat/completions", json=chat)
        assert (asked.status_code, asked.json()["error"]["code"]) == (404, "adapter_deleted")
        job = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": model, "training_file": tenant.file()})
        assert job.status_code == 400
        for refused in (asked, job):
            assert f"{adapter_id} was deleted on " in refused.json()["error"]["message"]


def test_a_deleted_tasks_adapter_stays_while_a_task_starts_from_it(tenant, won, database):
    """However long that waits, or is paused: without the adapter it could not go on from its own checkpoints either."""
    won_id, adapter_id = won
    later = tenant.task(warm_start={"adapter_id": adapter_id})["id"]
    assert tenant.delete(f"/v1/tasks/{won_id}").status_code == 204

    def stays() -> bool:
        forget(database, Retention(deleted=timedelta(0)))
        with database.begin() as session:
            emptied = session.get_one(Task, won_id).emptied_at is not None
            return session.get(Adapter, adapter_id) is not None and not emptied

    assert stays()
    assert tenant.post(f"/v1/tasks/{later}/cancel").status_code == 200
    assert not stays()


def test_it_stays_while_its_own_task_is_open(tenant, database, storage):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        adapter_id = adapter(session, storage, jobs_of(session, task_id)[0], FILES).id
        session.execute(update(Task).where(Task.id == task_id).values(status="running"))
    refused = tenant.delete(f"/v1/adapters/{adapter_id}")
    assert (refused.status_code, refused.json()["code"], refused.json()["tasks"]) == (409, "adapter_in_use", [task_id])
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204


def test_no_task_slips_past_a_deletion(tenant, won, database):
    """Deletions and submissions at once: whatever came first, no open task is left that starts from what is gone."""
    _, adapter_id = won
    spec = tenant.spec(tenant.file(), warm_start={"adapter_id": adapter_id})

    def act(turn: int) -> int:
        if turn % 4 == 3:
            return tenant.delete(f"/v1/adapters/{adapter_id}").status_code
        return tenant.post("/v1/tasks", json=spec).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(act, range(16)))
    assert set(answers) <= {201, 204, 409, 422}
    with database.begin() as session:
        open_ = session.scalars(select(Task.id).where(Task.spec["warm_start"]["adapter_id"].astext == adapter_id)).all()
        assert (session.get_one(Adapter, adapter_id).deleted_at is None) == bool(open_)


def test_the_other_face_does_not_list_it(tenant, won):
    task_id, adapter_id = won
    name = f"ft:small::{adapter_id}"
    models = [model["id"] for model in tenant.get("/openai/v1/models").json()["data"]]
    assert name in models
    tenant.delete(f"/v1/adapters/{adapter_id}")
    assert name not in [model["id"] for model in tenant.get("/openai/v1/models").json()["data"]]
    assert tenant.get(f"/openai/v1/models/{name}").status_code == 404
    assert tenant.get(f"/openai/v1/files/result-adapter-{task_id}/content").status_code == 404
    assert tenant.get(f"/openai/v1/fine_tuning/jobs/{task_id}").json()["fine_tuned_model"] == name
    assert tenant.get(f"/openai/v1/fine_tuning/jobs/{task_id}/checkpoints").json()["data"] == []
