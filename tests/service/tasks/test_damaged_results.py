"""Damaged values of a task's jobs, adapters, scores and batch: they are told to their owner, and end nothing of others."""

import json

import pytest
from sqlalchemy import text

from service.adapters.models import Adapter
from service.tasks.models import Job
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import completed, points
from tests.service.http.problems import problem_of
from tests.service.scheduler.planned import start, validated

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]

VALUES = [3, [[1]], {"n": 3}, "x"]
LISTS = [
    *("/v1/tasks", "/v1/adapters", "/v1/batches", "/v1/quotas", "/v1/usage", "/v1/schedule"),
    *("/openai/v1/fine_tuning/jobs", "/openai/v1/models"),
]
CONFIGS = [*VALUES, {}, {"batch_size": "x"}, {"batch_size": 4.5}, {"batch_size": 0}, {"batch_size": 4, "beta": {}}]


DAMAGED_FIELDS = [
    *(("batch_size", value) for value in ("x", "4", -4, 4.5)),
    *(("rank", value) for value in ("8", 0, {"of": 8}, 10**400)),
    *(("alpha", value) for value in (10**400, "x", 0)),
    *(("target_modules", value) for value in ("all-linear", [3], [])),
    ("schedule", {"kind": "wsd"}),
    ("beta", "auto"),
    ("learning_rate", None),
]


def write_field(database, name, value):
    """In every job's configuration and every adapter's lineage."""
    with database.begin() as session:
        for table, column, path in (("jobs", "config", [name]), ("adapters", "manifest", ["lineage", "config", name])):
            said = text(f"UPDATE {table} SET {column} = jsonb_set({column}, :path, CAST(:v AS jsonb))")
            session.execute(said, {"path": path, "v": json.dumps(value)})


@pytest.fixture
def node(new_node):
    return new_node("n")


@pytest.fixture
def ended(tenant, node, plan):
    task = tenant.task()["id"]
    plan()
    running = start(node, task)
    running.report(running.adapter(0, 1.0), completed(0), running.adapter(1, 1.1), completed(1))
    return task


def failing(tenant, paths):
    return {path: status for path in paths if (status := tenant.get(path).status_code) != 200}


@pytest.mark.parametrize("value", CONFIGS)
def test_a_configuration(tenant, ended, damage, value):
    damage(Job, "config", value, Job.task_id == ended)
    assert failing(tenant, [*LISTS, f"/v1/tasks/{ended}", f"/v1/tasks/{ended}/jobs"]) == {}
    for job in tenant.get(f"/v1/tasks/{ended}/jobs").json()["data"]:
        assert [(one["field"], one["code"]) for one in job["problems"]] == [("config", "unreadable")]


@pytest.mark.parametrize(("name", "value"), DAMAGED_FIELDS, ids=[f"{name} {value!s:.9}" for name, value in DAMAGED_FIELDS])
def test_a_field_of_a_configuration(tenant, ended, database, browser, name, value):
    adapter = f"/v1/adapters/{tenant.get('/v1/adapters').json()['data'][0]['id']}"  # the task itself would be cached
    write_field(database, name, value)
    of_adapter = [adapter, f"{adapter}/archive", f"{adapter}/files/README.md"]
    assert failing(tenant, [*LISTS, f"/v1/tasks/{ended}", f"/v1/tasks/{ended}/jobs", *of_adapter]) == {}
    assert browser.get(f"/tasks/{ended}").status_code == 200
    assert f" {name} " in tenant.get(f"/v1/tasks/{ended}").json()["problems"][0]["message"]
    for job in tenant.get(f"/v1/tasks/{ended}/jobs").json()["data"]:
        assert job["config"][name] == value
        assert [(one["field"], one["code"]) for one in job["problems"]] == [("config", "unreadable")]
        assert f" {name} " in job["problems"][0]["message"]
    shown = tenant.get(adapter).json()
    assert (shown["lineage"]["config"][name], shown["problems"][0]["field"]) == (value, "lineage.config")
    hyperparameters = tenant.get("/openai/v1/fine_tuning/jobs").json()["data"][0]["hyperparameters"]
    assert (hyperparameters["batch_size"] is None) == (name == "batch_size")
    assert (hyperparameters["learning_rate_multiplier"] is None) == (name == "learning_rate")


@pytest.mark.parametrize(("name", "value"), [("rank", 512), ("schedule", "wsd"), ("target_modules", ["q_proj", "router"])])
def test_a_value_of_a_newer_version(tenant, ended, database, browser, name, value):
    adapter = tenant.get(f"/v1/tasks/{ended}").json()["winner"]["adapter_id"]
    write_field(database, name, value)
    assert failing(tenant, [*LISTS, f"/v1/tasks/{ended}", f"/v1/adapters/{adapter}/archive"]) == {}
    assert browser.get(f"/tasks/{ended}").status_code == 200
    for job in tenant.get(f"/v1/tasks/{ended}/jobs").json()["data"]:
        assert (job["config"][name], job["problems"]) == (value, None)


@pytest.mark.parametrize(("name", "value"), [("rank", "16"), ("target_modules", "all-linear")])
def test_a_start_whose_shape_cannot_be_read(tenant, ended, database, name, value):
    adapter = tenant.get(f"/v1/tasks/{ended}").json()["winner"]["adapter_id"]
    write_field(database, name, value)
    refused = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), warm_start={"adapter_id": adapter}))
    (error,) = problem_of(refused, 422, "task_refused")["errors"]
    assert (error["field"], error["code"]) == ("warm_start.adapter_id", "adapter_unreadable")
    assert f"the {name} of its lineage.config cannot be read" in error["message"]


@pytest.mark.parametrize(("name", "value"), [("target_modules", "all-linear"), ("schedule", {"kind": "wsd"}), ("beta", "auto")])
def test_what_a_newer_worker_says_is_stored_as_it_came(tenant, node, plan, database, name, value):
    task = tenant.task()["id"]
    plan()
    running = start(node, task)
    kept = running.adapter(0, 1.0)
    kept["manifest"]["lineage"]["config"][name] = value
    running.report(kept, completed(0))
    with database.begin() as session:
        stored = session.scalar(text("SELECT manifest->'lineage'->'config' FROM adapters"))
    assert stored == kept["manifest"]["lineage"]["config"]


def test_a_status_of_a_newer_version(tenant, ended, damage):
    damage(Job, "status", "polishing", Job.task_id == ended)
    assert failing(tenant, [*LISTS, f"/v1/tasks/{ended}", f"/v1/tasks/{ended}/jobs"]) == {}
    job = tenant.get(f"/v1/tasks/{ended}/jobs").json()["data"][0]
    assert job["status"] == "training"
    assert "'polishing'" in job["problems"][0]["message"]
    assert tenant.get(f"/v1/tasks/{ended}").json()["jobs"]["training"] == 2


@pytest.mark.parametrize("value", VALUES)
def test_a_manifest(tenant, ended, damage, value):
    adapter = tenant.get(f"/v1/tasks/{ended}").json()["winner"]["adapter_id"]
    damage(Adapter, "manifest", value, Adapter.id == adapter)
    assert failing(tenant, [*LISTS, f"/v1/tasks/{ended}", f"/v1/adapters/{adapter}"]) == {}
    shown = tenant.get(f"/v1/adapters/{adapter}").json()
    assert (shown["files"], shown["problems"][0]["field"]) == ([], "manifest")
    refused = tenant.get(f"/v1/adapters/{adapter}/archive")
    assert (refused.status_code, refused.json()["code"]) == (500, "value_unreadable")
    assert "(adapters.manifest) cannot be read" in refused.json()["detail"]


@pytest.mark.parametrize("value", [3, "x", ["x"], {"n": 3}])
def test_the_steps_of_a_mean(tenant, ended, database, value):
    with database.begin() as session:
        said = text("UPDATE adapters SET manifest = jsonb_set(manifest, '{averaged_steps}', CAST(:v AS jsonb))")
        session.execute(said, {"v": json.dumps(value)})
    assert failing(tenant, ["/v1/tasks", "/v1/adapters", f"/v1/tasks/{ended}", f"/v1/tasks/{ended}/jobs"]) == {}
    assert tenant.get(f"/v1/tasks/{ended}").json()["winner"]["averaged_steps"] == []


@pytest.mark.parametrize("value", [{"bytes": "x"}, {"bytes": 4.5}, {"bytes": 10**30}, 3])
def test_a_checkpoint_in_the_sum_of_bytes(tenant, node, plan, dependencies, damage, value):
    task = validated(dependencies, tenant)
    plan()
    running = start(node, task)
    running.report(points(0, [1, 2]), running.checkpoint({0: 2}))
    damage(Job, "checkpoint", value, Job.task_id == task)
    assert failing(tenant, LISTS) == {}


@pytest.mark.parametrize("value", VALUES)
def test_the_start_of_a_running_task(tenant, ended, node, plan, dependencies, damage, value):
    adapter = tenant.get(f"/v1/tasks/{ended}").json()["winner"]["adapter_id"]
    task = validated(dependencies, tenant, warm_start={"adapter_id": adapter})
    plan()
    taken = node.take(task)
    taken.report(taken.attached())
    own = taken.upload(b"a checkpoint")
    damage(Adapter, "manifest", value, Adapter.id == adapter)
    assert taken.call("GET", f"objects/{own}").status_code == 404


@pytest.mark.parametrize("column", ["labels", "plan"])
@pytest.mark.parametrize("value", VALUES)
def test_a_batch(tenant, database, column, value):
    batch = tenant.post("/v1/batches", json={"tasks": [tenant.spec(tenant.file())]}).json()["id"]
    with database.begin() as session:
        said = text(f"UPDATE batches SET {column} = CAST(:v AS jsonb) WHERE id = :id")
        session.execute(said, {"v": json.dumps(value), "id": batch})
    assert failing(tenant, ["/v1/batches", f"/v1/batches/{batch}"]) == {}
    (problem,) = tenant.get(f"/v1/batches/{batch}").json()["problems"]
    assert (problem["field"], problem["code"]) == (column, "unreadable")
