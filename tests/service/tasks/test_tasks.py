"""Tasks over HTTP: made whole or not at all, listed, cancelled once and for good, validated against what is stored."""

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
from tests.service.api import PAIR, chat_rows


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


def refusals(response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    assert response.json()["code"] == "task_refused"
    return {error["field"]: error["message"] for error in response.json()["errors"]}


def test_everything_that_does_not_fit_is_said_at_once(tenant, new_tenant):
    foreign = new_tenant().file()
    spec = tenant.spec(foreign, base_model="smal", dataset={"file_id": foreign, "validation_file_id": "file_none"})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said["base_model"] == "'smal' is not on the list of base models; did you mean 'small'?"
    assert foreign in said["dataset.file_id"]
    assert "POST /v1/files" in said["dataset.validation_file_id"]


def test_an_unknown_model_shows_which_are_allowed(tenant):
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), base_model="other")))
    assert said["base_model"].endswith("allowed are: small")


def test_a_disabled_model_is_not_allowed(tenant, database):
    with database.begin() as session:
        session.add(
            BaseModel(
                name="old", source="/old", revision="b" * 64, architecture="x", parameters=1, max_position=64, enabled=False
            )
        )
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), base_model="old")))
    assert said["base_model"].endswith("allowed are: small")


def test_sequences_longer_than_the_model_reads(tenant):
    spec = tenant.spec(tenant.file(), training={"max_seq_len": 4096})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said["training.max_seq_len"] == "is 4096, but small has positions for at most 2048 tokens"


def test_a_validation_file_must_be_of_the_same_format_and_of_other_rows(tenant):
    train, pairs = tenant.file(chat_rows(4)), tenant.file([PAIR])
    again = tenant.file(chat_rows(4))
    for other, words in [(pairs, "is a completion file"), (train, "the very rows"), (again, "the very rows")]:
        spec = tenant.spec(train, dataset={"file_id": train, "validation_file_id": other})
        assert words in refusals(tenant.post("/v1/tasks", json=spec))["dataset.validation_file_id"]


def test_batches_and_rows_must_fit(tenant):
    spec = tenant.spec(tenant.file(chat_rows(3)), search_space={"learning_rate": [1e-4], "batch_size": [2, 4]})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said == {"search_space.batch_size[1]": "is 4, but the training file has only 3 rows"}
    one = tenant.spec(tenant.file(chat_rows(1)), search_space={"learning_rate": [1e-4], "batch_size": [1]})
    assert "none would be left to validate on" in refusals(tenant.post("/v1/tasks", json=one))["dataset.file_id"]


def test_a_configuration_listed_again_with_its_defaults_written_out(tenant):
    rate, modules = {"learning_rate": 1e-4}, ["q_proj", "v_proj"]
    jobs = [rate, rate | {"alpha": 32}, rate | {"weight_decay": 0.5}, rate | {"weight_decay": 0.1}]
    jobs += [rate | {"target_modules": modules}, rate | {"target_modules": modules[::-1]}]
    listed = {"search_space": {"method": "list", "jobs": jobs}, "training": {"weight_decay": 0.5}}
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), **listed)))
    assert {field: words.split(" with ")[0] for field, words in said.items()} == {
        "search_space.jobs[1]": "is jobs[0]",
        "search_space.jobs[2]": "is jobs[0]",
        "search_space.jobs[5]": "is jobs[4]",
    }


def test_a_refused_task_leaves_nothing(tenant, database):
    tenant.post("/v1/tasks", json=tenant.spec("file_none"))
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(Task).where(Task.tenant_id == tenant.tenant_id)) == 0


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
