"""An uploaded adapter whose manifest is damaged, and an event without data: they are told, and end nothing of others."""

import pytest

from service.adapters.models import Adapter
from service.tasks.models import Task, TaskEvent
from service.tasks.plan_status.plan_history import PlanChangeResource
from service.web.views.task_history import happenings
from tests.service.adapters.adapter_uploads import safetensors, tensors, upload

VALUES = [3, [[1]], {"n": 3}, {"settings": 3}]


@pytest.fixture
def uploaded(tenant, toy):
    return upload(tenant, safetensors(tensors())).json()["id"]


def starting(tenant, adapter, **more):
    space = {"learning_rate": [1e-3], "rank": [2], "target_modules": [["q_proj", "v_proj", "down_proj"]]}
    spec = tenant.spec(tenant.file(), base_model="toy", search_space=space, warm_start={"adapter_id": adapter})
    return tenant.post("/v1/tasks", json=spec | more)


@pytest.mark.parametrize("value", VALUES)
def test_models_and_jobs_are_listed(tenant, uploaded, damage, value):
    made = starting(tenant, uploaded)
    assert made.status_code == 201, made.text
    sound = upload(tenant, safetensors(tensors())).json()["id"]
    damage(Adapter, "manifest", value, Adapter.id == uploaded)
    models = [one["id"] for one in tenant.get("/openai/v1/models").json()["data"] if one["id"].startswith("ft:")]
    assert models == [f"ft:toy::{sound}", f"ft:unreadable::{uploaded}"]
    assert tenant.get(f"/openai/v1/models/{models[1]}").status_code == 200
    (job,) = tenant.get("/openai/v1/fine_tuning/jobs").json()["data"]
    assert job["model"] == models[1]
    assert tenant.get("/v1/tasks").status_code == 200


@pytest.mark.parametrize("value", VALUES)
def test_nothing_new_starts_from_it(tenant, uploaded, damage, value):
    damage(Adapter, "manifest", value, Adapter.id == uploaded)
    refused = starting(tenant, uploaded)
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert (error["field"], error["code"]) == ("warm_start.adapter_id", "adapter_unreadable")
    asked = {"model": uploaded, "training_file": tenant.file()}
    refused = tenant.post("/openai/v1/fine_tuning/jobs", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model"), refused.text


def test_what_is_told_of_a_manifest_names_its_fields(tenant, uploaded, damage):
    for value, field in (({"settings": {}}, "files"), ({"files": [{"path": 3}]}, "files.0.path")):
        damage(Adapter, "manifest", value, Adapter.id == uploaded)
        (problem,) = tenant.get(f"/v1/adapters/{uploaded}").json()["problems"]
        assert f"(adapters.manifest) cannot be read ({field}: " in problem["message"]


def test_events_without_data_are_left_out_of_a_tasks_page(tenant, database, damage):
    task = tenant.task()["id"]
    damage(TaskEvent, "data", 3, (TaskEvent.task_id == task) & (TaskEvent.number == 1))
    with database.begin() as session:
        events = session.query(TaskEvent).where(TaskEvent.task_id == task).order_by(TaskEvent.number).all()
        none: list[PlanChangeResource] = []
        assert len(happenings(events, none)) == len(events) - 1


def test_an_empty_selection_is_told(tenant, damage):
    task = tenant.task()["id"]
    damage(Task, "selection", {}, Task.id == task)
    problems = tenant.get(f"/v1/tasks/{task}").json()["problems"]
    assert [(one["field"], one["code"]) for one in problems] == [("selection", "unreadable")]
