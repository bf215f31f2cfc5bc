"""Jobs of a tpe search: their configurations stand in until an executor proposes them, once each and before they train."""

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import understood
from service.tasks.models import TaskEvent
from tests.service.fleet.scripted import moved

SPACE = {
    "method": "tpe",
    "n": 10,
    "learning_rate": [1e-4, 1e-3, 1e-2, 1e-1],
    "rank": [4, 8],
    "batch_size": [1, 2],
    "alpha_ratio": [1, 2],
}


@pytest.fixture
def placement(tenant, new_node, plan):
    node = new_node(said={"capabilities": sorted(understood())})
    task = tenant.task(search_space=SPACE)
    plan()
    return node.take(task["id"])


def proposed(job, config, **more):
    return {"kind": "job_proposed", "job": job, "config": config, "total_steps": 7, "warmup_steps": 1} | more


def test_the_jobs_of_later_rounds_wait_for_their_configurations(tenant, placement, database):
    given = placement.given
    assert [job.proposed for job in given.jobs] == [True] * 8 + [False] * 2
    placement.report(placement.attached())
    config = given.jobs[0].config.model_dump(mode="json") | {"learning_rate": 0.03, "batch_size": 2}
    said = {name: config[name] for name in ("learning_rate", "rank", "alpha", "batch_size", "seed", "weight_decay")}
    placement.report(proposed(8, said), moved(8, "warmup"))

    shown = tenant.get(f"/v1/tasks/{given.task_id}/jobs").json()["data"]
    assert [job["proposed"] for job in shown] == [True] * 9 + [False]
    assert shown[8]["config"] == config, "defaults and all, as other jobs'"
    assert (shown[8]["total_steps"], shown[8]["warmup_steps"], shown[8]["status"]) == (7, 1, "warmup")
    again = placement.node.take(given.task_id).given.jobs
    assert (again[8].proposed, again[8].config.learning_rate) == (True, 0.03)
    assert again[9] == given.jobs[9]
    with database.begin() as session:
        told = session.scalars(select(TaskEvent.data).where(TaskEvent.task_id == given.task_id, TaskEvent.kind == "job")).all()
    assert [(data["job"], data["config"]) for data in told if "config" in data] == [(8, config)]


@pytest.mark.parametrize(("job", "of"), [(0, "has its configuration"), (8, "has its configuration"), (10, "has jobs 0 to 9")])
def test_a_job_is_proposed_once(placement, job, of):
    config = placement.given.jobs[0].config.model_dump(mode="json")
    placement.report(proposed(8, config))
    refused = placement.send(proposed(job, config))
    assert (refused.status_code, refused.json()["code"]) == (422, "report_refused")
    assert of in refused.json()["detail"]


def test_a_worker_from_before_it_is_given_no_such_task(tenant, new_node, plan):
    old = new_node("old", said={"capabilities": sorted(understood() - {"search_space.method=tpe"})})
    task = tenant.task(search_space=SPACE)
    plan()
    assert old.desired().placements == []
    assert "search_space.method=tpe" in tenant.get(f"/v1/tasks/{task['id']}").json()["waiting"]["sentence"]


def test_a_space_that_proposes_nothing_is_refused(tenant):
    refused = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), search_space=SPACE | {"n": 8}))
    assert refused.status_code == 422
    assert "take 9 or more, or method 'random'" in refused.text
    refused = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), search_space=SPACE, early_exit={"policy": "none"}))
    assert "no warmup ends before the training" in refused.text
