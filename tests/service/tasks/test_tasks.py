"""Tasks over HTTP: made whole or not at all, listed, cancelled once and for good, validated against what is stored."""

import secrets

import pytest
from sqlalchemy import func, select, update

from contract.states import JobStatus
from contract.task_spec import TaskSpec
from service.database.engine import Database
from service.fleet.models import BaseModel, Node, Placement
from service.graders.endpoint_graders import EndpointGraders
from service.scheduler.models import PlanRequest
from service.tasks import actions
from service.tasks.models import Job, Task, TaskEvent
from service.tenants.api_keys import Principal, Scope
from tests.service.api import chat_rows


def test_a_task_is_made_with_all_its_jobs(tenant, database):
    file_id = tenant.file(chat_rows(20))
    spec = tenant.spec(file_id, name="sums", labels={"run": "7"}, search_space={"learning_rate": [1e-4, 1e-3], "rank": [8, 16]})
    made = tenant.post("/v1/tasks", json=spec)
    assert made.status_code == 201, made.text
    task = made.json()
    assert made.headers["location"] == f"/v1/tasks/{task['id']}"
    assert made.headers["etag"] == '"1"'
    assert (task["object"], task["name"], task["status"], task["labels"]) == ("task", "sums", "validating", {"run": "7"})
    assert task["jobs"] == {status: 0 for status in JobStatus} | {"pending": 4}
    assert task["base_revision"] == "a" * 64
    assert TaskSpec.model_validate(task["spec"]) == TaskSpec.model_validate(spec)
    assert tenant.get(f"/v1/tasks/{task['id']}").json() == task

    jobs = tenant.get(f"/v1/tasks/{task['id']}/jobs").json()
    assert jobs["next_cursor"] is None
    assert [(job["index"], job["config"]["learning_rate"], job["config"]["rank"]) for job in jobs["data"]] == [
        (0, 1e-4, 8),
        (1, 1e-4, 16),
        (2, 1e-3, 8),
        (3, 1e-3, 16),
    ]
    assert tenant.get(f"/v1/jobs/{jobs['data'][2]['id']}").json() == jobs["data"][2]


def test_what_making_one_tells_is_what_is_stored(tenant, settings, database, queue):
    spec = tenant.spec(tenant.file(), name="sums", labels={"run": "7"}, priority=3, deadline="2031-01-01T00:00:00Z")
    caller = Principal(tenant.tenant_id, "key_x", frozenset(Scope))
    with Database(settings.app_database_url, pool_size=1).for_tenant(tenant.tenant_id).begin() as session:
        told = actions.create(session, queue, EndpointGraders.of(settings), caller, TaskSpec.model_validate(spec))
    with database.begin() as session:
        stored = session.get_one(Task, told.id)
        for name in set(Task.__table__.c.keys()) - {
            *("fence", "losses", "faults", "last_event", "told_status", "kept_rows", "rewound_rows"),
        }:
            assert getattr(told, name) == getattr(stored, name), name
        assert (stored.fence, stored.lost_executors, stored.faults) == (0, 0, {})
        assert (stored.last_event, stored.told_status) == (1, "validating")
        (event,) = session.scalars(select(TaskEvent).where(TaskEvent.task_id == told.id))
        assert (event.number, event.kind, event.data) == (1, "status", {"status": "validating"})


@pytest.mark.parametrize("header", ["application/json", "application/json; charset=utf-8"])
def test_however_it_is_sent_a_submission_is_answered_alike(tenant, header):
    """The second one goes the long way, through FastAPI."""
    made = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()), headers={"content-type": header})
    assert made.status_code == 201
    assert made.headers["content-type"] == "application/json"
    assert made.json() == tenant.get(made.headers["location"]).json()
    assert {"ratelimit-limit", "x-request-id", "etag"} <= made.headers.keys()
    stranger = {"content-type": header, "authorization": "Bearer x"}
    nobody = tenant.client.post("/v1/tasks", json=tenant.spec("file_x"), headers=stranger)
    assert (nobody.status_code, nobody.json()["code"]) == (401, "key_refused")
    wrong = tenant.post("/v1/tasks", json=tenant.spec("file_x", gpus=0), headers={"content-type": header})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "gpus")


def test_a_deadline_that_is_over_is_told_in_the_answer(tenant):
    past, key = "2020-01-01T00:00:00Z", {"idempotency-key": secrets.token_hex(8)}
    spec = tenant.spec(tenant.file(), deadline=past)
    made, again = (tenant.post("/v1/tasks", json=spec, headers=key) for _ in range(2))
    assert (made.status_code, again.json()) == (201, made.json())
    (over,) = made.json()["problems"]
    assert (over["field"], over["code"]) == ("deadline", "deadline_over")
    assert "the task is late from the beginning" in over["message"]
    assert tenant.get(made.headers["location"]).json() == made.json() | {"problems": None}
    assert tenant.post("/v1/tasks", json=spec | {"deadline": "2100-01-01T00:00:00Z"}).json()["problems"] is None
    for not_before in ("2019-01-01T00:00:00Z", past):
        answer = tenant.post("/v1/tasks", json=spec | {"not_before": not_before})
        assert answer.status_code == (422 if not_before == past else 201)


def test_pages_and_statuses(tenant):
    made = [tenant.task()["id"] for _ in range(4)]
    tenant.post(f"/v1/tasks/{made[1]}/cancel")
    first = tenant.get("/v1/tasks?limit=3").json()
    second = tenant.get("/v1/tasks", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [task["id"] for task in first["data"] + second["data"]] == made[::-1]
    assert second["next_cursor"] is None
    cancelled = tenant.get("/v1/tasks?status=cancelled&status=failed").json()["data"]
    assert [task["id"] for task in cancelled] == [made[1]]
    assert tenant.get("/v1/tasks?status=running").json()["data"] == []


def place(session, task_id: str, node_name: str) -> Placement:
    """The task as if it ran: a node, a live placement, jobs in every state."""
    node = Node(
        id=f"node_{node_name}",
        name=node_name,
        boot_id="b" * 8,
        status="ready",
        devices=[],
        versions={},
        credential_hash=b"",
        tokens_per_second={},
    )
    placement = Placement(
        id=f"placement_{node_name}",
        task_id=task_id,
        node_id=node.id,
        device_indexes=[0],
        fence=1,
        lease_until=func.clock_timestamp(),
        steps=6,
        tokens=3000,
        train_seconds=1.5,
        micro_batches=9,
        forwards=9,
    )
    session.add(node)
    session.flush()
    session.add(placement)
    session.flush()
    return placement


def test_a_running_task_shows_what_it_has_done(tenant, database):
    task_id = tenant.task(search_space={"learning_rate": [1e-4, 2e-4, 3e-4], "batch_size": [4]})["id"]
    with database.begin() as session:
        place(session, task_id, "north")
        session.execute(
            update(Task).where(Task.id == task_id).values(status="running", train_rows=18, validation_rows=2, fence=1)
        )
        # 18 rows at batch 4 are 5 steps an epoch, the last one of 2 rows; 3 epochs are 15 steps and 54 samples
        for index, (status, step) in enumerate([("training", 7), ("exited", 5), ("pending", 0)]):
            session.execute(
                update(Job).where(Job.task_id == task_id, Job.index == index).values(status=status, step=step, total_steps=15)
            )
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert task["progress"] == {"steps_done": 12, "steps_total": 15 + 5 + 15}
    assert task["samples"] == {"trained": (18 + 8) + 18, "full": 3 * 54, "saved_fraction": (54 - 18) / (3 * 54)}
    assert {status: count for status, count in task["jobs"].items() if count} == {"training": 1, "exited": 1, "pending": 1}
    placement = task["placement"]
    assert placement.pop("since")
    assert placement == {
        "node": "north",
        "device_type": None,
        "gpus": 1,
        "beside": 0,
        "slowdown": None,
        "acknowledged_at": None,
        "ended_at": None,
        "end_reason": None,
        "waits_for": None,
        "loading": None,
        "tokens_per_second": 2000.0,
        "steps": 6,
        "micro_batches": 9,
        "forwards": 9,
    }


@pytest.mark.parametrize(
    ("status", "jobs", "total"),
    [
        ("cancelled", ("exited", "failed", "cancelled"), 7 + 15 + 15),
        ("failed", ("exited", "failed", "failed"), 7 + 15 + 15),
        ("succeeded", ("exited", "failed", "completed"), 7 + 5 + 15),
    ],
)
def test_only_a_task_that_ended_by_itself_has_done_all_its_steps(tenant, database, status, jobs, total):
    task_id = tenant.task(search_space={"learning_rate": [1e-4, 2e-4, 3e-4], "batch_size": [4]})["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task_id).values(status=status, train_rows=18))
        for index, (job, step) in enumerate(zip(jobs, (7, 5, 15 if status == "succeeded" else 4), strict=True)):
            ended = update(Job).where(Job.task_id == task_id, Job.index == index)
            session.execute(ended.values(status=job, step=step, total_steps=15))
    (listed,) = tenant.get("/v1/tasks").json()["data"]
    assert listed["progress"]["steps_total"] == tenant.get(f"/v1/tasks/{task_id}").json()["progress"]["steps_total"] == total


def test_cancelling_ends_everything_at_once_and_once(tenant, database):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        placement_id = place(session, task_id, "south").id
        session.execute(update(Task).where(Task.id == task_id).values(status="running", fence=1))
        done = update(Job).where(Job.task_id == task_id, Job.index == 0)
        session.execute(done.values(status="completed", step=9, best_val_loss=1.0))
        session.execute(update(Job).where(Job.task_id == task_id, Job.index == 1).values(status="training", step=4))
        asked = session.scalar(select(func.count()).select_from(PlanRequest))
    cancelled = tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    task = cancelled.json()
    assert (task["status"], task["placement"]["end_reason"], task["version"]) == ("cancelled", "cancelled", 2)
    assert task["ended_at"]
    assert [job["status"] for job in tenant.get(f"/v1/tasks/{task_id}/jobs").json()["data"]] == ["completed", "cancelled"]
    with database.begin() as session:
        placement = session.get_one(Placement, placement_id)
        assert (placement.end_reason, placement.ended_at is not None) == ("cancelled", True)
        assert session.get_one(Task, task_id).fence == 2
        assert session.get_one(Node, "node_south").desired_version == 1
        assert session.scalar(select(func.count()).select_from(PlanRequest)) == asked + 1

    again = tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert (again.status_code, again.json()) == (200, task)


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_what_has_ended_otherwise_cannot_be_cancelled(tenant, database, status):
    task_id = tenant.task()["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task_id).values(status=status))
    refused = tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert refused.status_code == 409
    assert (refused.json()["code"], refused.json()["task_status"]) == ("task_ended", status)
    assert f"already {status}" in refused.json()["detail"]


def test_no_redis_no_matter(new_database_url, settings_for, tmp_path, serve):
    made = settings_for(new_database_url, tmp_path, redis_url="redis://127.0.0.1:1")
    caller = serve(made)
    with caller.client.app.state.motet.system.begin() as session:
        session.add(
            BaseModel(
                name="small", source="/s", revision="a" * 64, architecture="x", parameters=1, max_position=2048, enabled=True
            )
        )
    task = caller.task()
    assert caller.post(f"/v1/tasks/{task['id']}/cancel").status_code == 200


def test_tasks_are_found_by_their_labels(tenant):
    blue, red = (tenant.task(labels={"team": team, "run": "1"})["id"] for team in ("blue", "red"))

    def found(*labels: str) -> list[str]:
        return [task["id"] for task in tenant.get("/v1/tasks", params={"label": labels}).json()["data"]]

    assert found("team=blue") == [blue]
    assert found("run=1") == [red, blue]
    assert found("run=1", "team=red") == [red]
    assert found("team=") == []
    assert tenant.get("/v1/tasks", params={"label": "team"}).status_code == 422


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("ACCENT É", True), ("é", True), ("50%", True), ("5_%", False), ("no such", False), ("{id}", True), ("{upper}", True)],
)
def test_tasks_are_found_by_a_text_in_their_name_or_id(new_tenant, text, wanted):
    tenant = new_tenant()
    file = tenant.file()
    made = tenant.post("/v1/tasks", json=tenant.spec(file) | {"name": "accent é 50%"}).json()["id"]
    tenant.post("/v1/tasks", json=tenant.spec(file) | {"name": "another"})
    asked = text.format(id=made[-8:], upper=made[5:].upper())
    found = [task["id"] for task in tenant.get("/v1/tasks", params={"text": asked}).json()["data"]]
    assert found == ([made] if wanted else [])
