"""Batches over HTTP: all tasks or none, one view, one cancel, one event stream; each tenant's own."""

import json
import secrets
from datetime import UTC, datetime, timedelta

import pytest
from motet import Client
from sqlalchemy import event, func, select, update

from contract.batch_spec import BatchSpec
from service.batches.models import Batch
from service.tasks.models import Task
from service.tenants.models import Tenant
from tests.service.fleet.scripted import moved
from tests.service.live_server import PATIENCE
from tests.service.scheduler.planned import start
from tests.service.scheduler.sharing import GPU, LONG, SHARES, SHORT


def batch_of(caller, count=3, **changes):
    file_id = caller.file()
    return {"tasks": [caller.spec(file_id, name=f"n{at}") for at in range(count)]} | changes


def post(caller, **changes):
    answer = caller.post("/v1/batches", json=batch_of(caller, **changes))
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_batch_is_its_tasks(tenant):
    wanted = batch_of(tenant, name="nightly", objective="weighted_completion", labels={"team": "a"})
    answer = tenant.post("/v1/batches", json=wanted)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert answer.headers["location"] == f"/v1/batches/{made['id']}"
    assert (made["name"], made["objective"], made["labels"], made["status"]) == (
        *("nightly", "weighted_completion"),
        {"team": "a"},
        "queued",
    )
    assert [task["name"] for task in made["tasks"]] == ["n0", "n1", "n2"]
    assert made["counts"]["validating"] == 3
    for task in made["tasks"]:
        assert tenant.get(f"/v1/tasks/{task['id']}").json()["batch_id"] == made["id"]
    assert tenant.get(f"/v1/batches/{made['id']}").json() == made
    assert tenant.get("/v1/batches").json()["data"] == [made]
    entries = tenant.get("/v1/audit", params={"action": "create_batch"}).json()["data"]
    assert [made["id"] in entry["targets"] for entry in entries] == [True]


def test_a_list_reads_all_batches_at_once(tenant, app):
    """As many statements for three batches as for one: a page's time does not grow by a round trip with each batch."""
    engine, statements = app.state.motet.db.engine, list[str]()

    def heard(connection, cursor, statement, *rest):
        statements.append(statement)

    def listed() -> tuple[int, int]:
        statements.clear()
        batches = tenant.get("/v1/batches").json()["data"]
        return len(batches), len(statements)

    event.listen(engine, "before_cursor_execute", heard)
    try:
        post(tenant)
        one, read = listed()
        for count in (2, 5):
            post(tenant, count=count)
        assert (one, listed()) == (1, (3, read))
        assert read > 1
    finally:
        event.remove(engine, "before_cursor_execute", heard)


def test_a_task_alone_has_no_batch(tenant):
    assert tenant.task()["batch_id"] is None


def test_all_mistakes_of_all_tasks_are_named_and_nothing_is_made(tenant, database):
    wanted = batch_of(tenant, count=4)
    wanted["tasks"][1]["base_model"] = "none"
    wanted["tasks"][3]["dataset"] = {"file_id": "file_none"}
    for path in ("/v1/batches", "/v1/batches/estimate"):
        answer = tenant.post(path, json=wanted)
        assert (answer.status_code, answer.json()["code"]) == (422, "task_refused")
        assert [error["field"] for error in answer.json()["errors"]] == ["tasks[1].base_model", "tasks[3].dataset.file_id"]
    with database.begin() as session:
        for model in (Task, Batch):
            assert session.scalar(select(func.count()).select_from(model).where(model.tenant_id == tenant.tenant_id)) == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tasks": []}, "tasks"),
        ({"objective": "soon"}, "objective"),
        ({"deadline": "tomorrow"}, "deadline"),
        ({"task": []}, "task"),
    ],
)
def test_a_wrong_field_is_named(tenant, changes, field):
    answer = tenant.post("/v1/batches", json=batch_of(tenant) | changes)
    assert answer.status_code == 422
    assert field in {error["field"] for error in answer.json()["errors"]}


def test_a_deadline_before_a_tasks_start_is_refused(tenant):
    wanted = batch_of(tenant, deadline="2100-01-01T00:00:00Z")
    wanted["tasks"][1]["not_before"] = "2100-01-02T00:00:00Z"
    answer = tenant.post("/v1/batches", json=wanted)
    assert (answer.status_code, "tasks[1]" in answer.json()["detail"]) == (422, True), answer.text


def test_deadlines_that_are_over_are_told_in_the_answer(tenant):
    past = "2020-01-01T00:00:00Z"
    wanted = batch_of(tenant, deadline=past)
    wanted["tasks"][1]["deadline"] = past
    made = tenant.post("/v1/batches", json=wanted).json()
    said = [("deadline", "deadline_over"), ("tasks[1].deadline", "deadline_over")]
    assert [(one["field"], one["code"]) for one in made["problems"]] == said
    assert (made["expected_end"], made["late"]) == (None, True)
    assert tenant.get(f"/v1/batches/{made['id']}").json()["late"]
    assert tenant.post("/v1/batches", json=batch_of(tenant)).json()["problems"] is None


def test_the_quota_admits_all_or_none(tenant, database):
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(queued_tasks_quota=3))
    refused = tenant.post("/v1/batches", json=batch_of(tenant, count=4))
    assert (refused.status_code, refused.json()["code"], refused.json()["quota"]) == (403, "quota_exceeded", "queued_tasks")
    assert tenant.get("/v1/tasks").json()["data"] == []
    post(tenant, count=3)
    assert tenant.post("/v1/tasks", json=tenant.spec(tenant.file())).status_code == 403


def test_a_key_makes_one_batch(tenant):
    wanted, key = batch_of(tenant), {"idempotency-key": secrets.token_hex(8)}
    first, again = (tenant.post("/v1/batches", json=wanted, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert len(tenant.get("/v1/batches").json()["data"]) == 1


def test_another_tenants_batch_is_not_there(tenant, new_tenant):
    made, other = post(tenant), new_tenant()
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/events")):
        answer = other.request(method, f"/v1/batches/{made['id']}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert other.get("/v1/batches").json()["data"] == []
    assert tenant.get(f"/v1/batches/{made['id']}").json()["status"] == "queued"


def test_one_cancel_ends_all_that_has_not_ended(tenant, new_node, plan):
    node, made = new_node(slots=1), post(tenant)
    plan()
    assert len(node.desired().placements) == 1
    cancelled = tenant.post(f"/v1/batches/{made['id']}/cancel").json()
    assert (cancelled["status"], cancelled["counts"]["cancelled"]) == ("cancelled", 3)
    assert cancelled["ended_at"] is not None
    assert tenant.post(f"/v1/batches/{made['id']}/cancel").json() == cancelled
    assert node.desired().placements == []


def test_an_estimate_stores_nothing_and_says_when_the_last_ends(tenant, new_node, plan):
    new_node(slots=2)
    said = tenant.post("/v1/batches/estimate", json=batch_of(tenant, count=5, deadline="2020-01-01T00:00:00Z")).json()
    assert said["object"] == "batch_estimate"
    assert (len(said["tasks"]), said["late"]) == (5, True)
    assert said["expected_end"] == max(task["expected_end"] for task in said["tasks"])
    assert said["makespan_seconds"] > 0
    assert tenant.get("/v1/tasks").json()["data"] == tenant.get("/v1/batches").json()["data"] == []


@pytest.mark.parametrize("more", [{}, {"not_before": "2100-01-01T00:00:00Z"}])
def test_a_task_that_no_node_has_room_for_leaves_the_end_unknown(tenant, new_node, plan, more):
    new_node(slots=2)
    wanted = batch_of(tenant)
    wanted["tasks"][0] |= {"gpus": 4} | more
    wanted["deadline"] = "2101-01-01T00:00:00Z"
    said = tenant.post("/v1/batches/estimate", json=wanted).json()
    assert (said["makespan_seconds"], said["expected_end"], said["late"]) == (None, None, False)
    if not more:
        assert tenant.post("/v1/batches/estimate", json=wanted | {"deadline": "2020-01-01T00:00:00Z"}).json()["late"]


def test_an_estimate_counts_a_task_that_joins_another(tenant, new_node, plan):
    gpu = new_node(said=SHARES | GPU)
    running = tenant.task(**LONG)["id"]
    plan()
    start(gpu, running)
    wanted = {"tasks": [tenant.spec(tenant.file(), **SHORT)], "objective": "weighted_completion"}
    said = tenant.post("/v1/batches/estimate", json=wanted | {"deadline": "2020-01-01T00:00:00Z"}).json()
    (joins,) = said["tasks"]
    assert joins["sharing"] is not None
    assert (said["expected_end"], said["late"]) == (joins["expected_end"], True)
    assert said["makespan_seconds"] > 0


def test_an_estimate_counts_what_a_joiner_takes_from_the_task_that_it_joins(tenant, new_node):
    new_node(said=SHARES | GPU)
    file_id = tenant.file([{"prompt": f"{n}? " + "word " * 200, "completion": str(n)} for n in range(400)])  # for full passes
    space = {"learning_rate": [1e-4 * (1 + n) for n in range(8)], "batch_size": [8]}
    tasks = [
        tenant.spec(file_id, search_space=space, training={"epochs": epochs, "max_seq_len": 256}, priority=priority)
        for epochs, priority in ((100, 10), (20, 1))
    ]
    alone, both = (
        tenant.post("/v1/batches/estimate", json={"tasks": some, "objective": "weighted_completion"}).json()
        for some in (tasks[:1], tasks)
    )
    first, joins = both["tasks"]
    assert (first["sharing"], joins["sharing"] is not None) == (None, True)
    assert both["makespan_seconds"] > alone["makespan_seconds"]
    assert both["expected_end"] == first["expected_end"]


def test_an_estimate_counts_a_task_that_may_only_start_later(tenant, new_node, plan):
    new_node(slots=2)
    wanted = batch_of(tenant, count=2, deadline="2100-01-01T00:00:01Z")
    wanted["tasks"][1]["not_before"] = "2100-01-01T00:00:00Z"
    said = tenant.post("/v1/batches/estimate", json=wanted).json()
    (takes,) = (kind["seconds"]["expected"] for kind in said["tasks"][1]["device_types"])
    ends = datetime(2100, 1, 1, tzinfo=UTC) + timedelta(seconds=takes)
    assert (datetime.fromisoformat(said["expected_end"]), said["late"]) == (ends, True)
    assert said["makespan_seconds"] == pytest.approx((ends - datetime.now(UTC)).total_seconds(), abs=PATIENCE)


def test_the_client_estimates_makes_lists_and_cancels(server, tenant):
    with Client(server.url, tenant.key) as client:
        wanted = batch_of(tenant)
        assert [task.jobs for task in client.batches.estimate(wanted).tasks] == [2, 2, 2]
        made = client.batches.create(BatchSpec.model_validate(wanted))
        assert client.batches.get(made.id) == made
        assert [one.id for one in client.batches.list()] == [made.id]
        assert client.batches.cancel(made.id).status == "cancelled"


# ---- events ----------------------------------------------------------------------------------------------------------


def events(text):
    """(id, data) of each frame."""
    frames = [
        dict(line.split(": ", 1) for line in frame.split("\n")) for frame in text.split("\n\n") if frame.startswith("id: ")
    ]
    return [(frame["id"], json.loads(frame["data"])) for frame in frames]


def test_one_stream_tells_of_all_tasks_and_goes_on_anywhere(tenant, new_node, plan):
    node, made = new_node(slots=1), post(tenant)
    plan()
    (given,) = node.desired().placements
    taken = node.take(given.task_id)
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"))
    tenant.post(f"/v1/batches/{made['id']}/cancel")
    path = f"/v1/batches/{made['id']}/events"
    seen = events(tenant.get(path).text)
    ids = [task["id"] for task in made["tasks"]]
    for index, id in enumerate(ids):
        own = [said for _, said in seen if said["task"] == index]
        assert {said["task_id"] for said in own} == {id}
        assert [said["number"] for said in own] == list(range(1, len(own) + 1))
        assert [said["data"]["status"] for said in own if said["type"] == "status"][-1] == "cancelled"
    for at, (id, _) in enumerate(seen[:-1]):
        assert events(tenant.get(path, headers={"last-event-id": id}).text) == seen[at + 1 :]
    assert tenant.get(path, params={"after": seen[-1][0]}).status_code == 204


@pytest.mark.parametrize("cursor", ["1", "1.1", "1.1.1.1", "1.a.1", "-1.1.1", "1..1", "9" * 30 + ".1.1"])
def test_an_id_of_another_stream_is_refused(tenant, cursor):
    path = f"/v1/batches/{post(tenant)['id']}/events"
    answer = tenant.get(path, params={"after": cursor})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "event_unknown")
