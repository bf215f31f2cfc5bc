"""A place in the queue is read from the plan in force: no row, version or notice of a waiting task moves because one starts."""

import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from service.background.reconciler import replan_elapsed_delays
from service.database.engine import CHANNEL, new_id
from service.fleet.models import Node
from service.scheduler.explain import plan_news
from service.scheduler.models import Plan, PlanChange, PlanRequest, QueueStatus, ThroughputProfile
from service.scheduler.state import snapshot
from service.tasks.models import Task
from tests.service.live_server import PATIENCE


def rows_of(database, ids):
    with database.begin() as session:
        tasks = {task.id: (task.version, task.waiting, task.last_event) for task in session.scalars(select(Task))}
        changes = sorted(session.execute(select(PlanChange.task_id, PlanChange.id)).all())
        return {id: tasks[id] for id in ids}, [change for change in changes if change[0] in ids]


@pytest.fixture
def hours_long(database, nothing_left):
    """A measured speed at which each task takes hours, so that seconds between two plans move no start by a lot."""
    measured = {"base_model": "small", "precision": "bf16", "device_type": "cpu", "tokens": 128, "rows": 0, "width": 1}
    with database.begin() as session:
        session.add(ThroughputProfile(**measured, mean_tokens=100.0, log_seconds=6.0, variance=0.0, measured=8))


@pytest.fixture
def heard(client, database):
    """Wait until this process has heard of all that is committed: a late notice would wake polls and drop what is kept."""
    listener, come = client.app.state.motet.change_listener, {}

    def told(notices):
        for notice in come.keys() & set(notices):
            come[notice].set()

    listener.on_change(told)

    def wait():
        assert listener.listening.wait(PATIENCE)
        marker = new_id("marker")
        come[marker] = threading.Event()
        with database.begin() as session:
            session.execute(select(func.pg_notify(CHANNEL, marker)))
        assert come[marker].wait(PATIENCE)

    yield wait
    listener._callbacks.remove(told)


@pytest.fixture
def queue(tenant, new_node, plan, heard):
    """One node, one task that runs, four that wait, in the order in which they are planned."""
    node, tasks = new_node(slots=1), [tenant.task()["id"] for _ in range(5)]
    plan()
    (running,) = [placement.task_id for placement in node.desired().placements]
    heard()
    waits = sorted(set(tasks) - {running}, key=lambda id: place(tenant, id))
    return node, running, waits


def get(tenant, id, **how):
    return tenant.client.get(f"/v1/tasks/{id}", headers=tenant.headers | how.pop("headers", {}), params=how or None)


def place(tenant, id):
    return get(tenant, id).json()["waiting"]["place"]


def test_a_start_writes_no_row_of_those_who_go_on_waiting(tenant, queue, plan, database):
    _, running, waits = queue
    before, etags = rows_of(database, waits[1:]), {id: get(tenant, id).headers["etag"] for id in waits}
    assert [place(tenant, id) for id in waits] == [1, 2, 3, 4]
    assert tenant.post(f"/v1/tasks/{running}/cancel").status_code == 200
    plan()
    assert get(tenant, waits[0]).json()["status"] == "running"
    assert [place(tenant, id) for id in waits[1:]] == [1, 2, 3]
    assert rows_of(database, waits[1:]) == before
    seen = {id: get(tenant, id) for id in waits[1:]}
    listed = {task["id"]: task for task in tenant.get("/v1/tasks").json()["data"]}
    planned = {one["task_id"]: one["place"] for one in tenant.get("/v1/schedule").json()["waiting"]}
    for id, answer in seen.items():
        assert answer.json() == listed[id]
        assert planned[id] == answer.json()["waiting"]["place"]
        assert f"{planned[id] - 1} task" in answer.json()["waiting"]["sentence"] or planned[id] == 1
        assert answer.headers["etag"] != etags[id]
        assert answer.json()["version"] == before[0][id][0]


def test_an_etag_changes_with_the_place_and_a_long_poll_does_not_end_for_it(tenant, queue, plan, database):
    _, running, waits = queue
    id = waits[-1]
    etag = get(tenant, id).headers["etag"]
    assert get(tenant, id, headers={"if-none-match": etag}).status_code == 304
    assert tenant.post(f"/v1/tasks/{running}/cancel").status_code == 200
    plan()
    moved = get(tenant, id, headers={"if-none-match": etag})
    assert (moved.status_code, moved.json()["waiting"]["place"]) == (200, 3)
    assert get(tenant, id, headers={"if-none-match": moved.headers["etag"]}).status_code == 304
    polls, asked = tenant.client.app.state.motet.polls, []
    version = polls.version

    async def counted(*given):
        asked.append(given)
        return await version(*given)

    polls.version = counted
    try:
        began = time.monotonic()
        waited = get(tenant, id, headers={"if-none-match": etag}, wait=0.3)
        assert time.monotonic() - began >= 0.3
        assert (waited.status_code, waited.headers["etag"]) == (200, moved.headers["etag"])
        assert len(asked) == 1, "it was held until its time was over, and woken by nothing"
    finally:
        del polls.version
    assert get(tenant, id, headers={"if-none-match": '"0"'}, wait=30).status_code == 200


def test_a_task_that_only_moved_is_shown_there_and_not_read_again(tenant, queue, plan, monkeypatch):
    """Its place is put into the answer that is kept, which then is, byte for byte, what a read of the task makes."""
    _, running, waits = queue
    etags = {id: get(tenant, id).headers["etag"] for id in waits}
    polls, loads = tenant.client.app.state.motet.polls, []
    act = polls._loads._act
    monkeypatch.setattr(polls._loads, "_act", lambda *given: loads.append(given) or act(*given))
    assert tenant.post(f"/v1/tasks/{running}/cancel").status_code == 200
    plan()
    for _ in range(2):
        moved = {id: get(tenant, id) for id in waits[1:]}
    assert loads == []
    for place, (id, answer) in enumerate(moved.items(), 1):
        assert (answer.json()["waiting"]["place"], answer.headers["etag"] == etags[id]) == (place, False)
        assert get(tenant, id, headers={"if-none-match": answer.headers["etag"]}).status_code == 304
    polls._kept.clear()
    for id, answer in moved.items():
        read = get(tenant, id)
        assert (read.content, read.headers["etag"]) == (answer.content, answer.headers["etag"])
    assert len(loads) == len(moved)
    assert tenant.post(f"/v1/tasks/{waits[2]}/pause").status_code == 200
    assert get(tenant, waits[2]).json()["waiting"]["code"] == "paused"


@pytest.mark.usefixtures("hours_long")
def test_what_moved_by_little_is_shown_as_before(tenant, queue, again, database):
    """So polls between two starts are answered with 304, however many plans arrivals ask for."""
    etags = {id: get(tenant, id).headers["etag"] for id in queue[2]}
    with database.begin() as session:
        packed = session.scalars(select(QueueStatus.packed)).one()
    assert again() == 1
    for id, etag in etags.items():
        assert get(tenant, id, headers={"if-none-match": etag}).status_code == 304
    with database.begin() as session:
        assert session.scalars(select(QueueStatus.packed)).one() == packed


def test_a_sentence_that_alone_changed_is_shown(tenant, admin, new_node, plan):
    """A higher quota moves neither the start of a task that waits for it all the same, nor its place."""
    new_node(slots=8)
    for quota in (4, 5):
        admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": quota}})
        if quota == 4:
            tenant.task(gpus=3)
            plan()
            waits = f"/v1/tasks/{tenant.task(gpus=3)['id']}"
        plan()
        said = tenant.get(waits)
        assert f"your quota is {quota} CPU slots at once" in said.json()["waiting"]["sentence"]
    assert tenant.get(waits, headers={"If-None-Match": said.headers["etag"]}).status_code == 304


def test_a_task_that_comes_back_is_not_planned_whatever_the_plan_said_before(tenant, queue, again):
    id = queue[2][1]
    assert tenant.post(f"/v1/tasks/{id}/pause").json()["waiting"]["code"] == "paused"
    assert tenant.post(f"/v1/tasks/{id}/resume").json()["waiting"]["code"] == "not_planned"
    assert get(tenant, id).json()["waiting"]["code"] == "not_planned"
    again()
    assert get(tenant, id).json()["waiting"]["place"] in range(1, 5)


def test_what_nobody_waits_for_is_not_kept(tenant, queue, again, database):
    for id in queue[2]:
        tenant.post(f"/v1/tasks/{id}/cancel")
    again()
    with database.begin() as session:
        assert list(session.scalars(select(QueueStatus))) == []


def test_news_that_was_put_off_is_told_by_a_later_plan(tenant, queue, plan, again, database, dependencies, monkeypatch):
    node, _, waits = queue
    monkeypatch.setattr(plan_news, "LEAST", 1)
    monkeypatch.setattr(plan_news, "RATE", 0.0)
    drained = tenant.client.app.state.motet.system
    with drained.begin() as session:
        session.get_one(Node, node.id).drained_at = session.get_one(Node, node.id).joined_at
    told = []
    again()
    for _ in range(4):
        told.append([task for task in waits if stored(database, task) == "node_drained"])
        assert {get(tenant, id).json()["waiting"]["code"] for id in waits} == {"node_drained"}, "an answer tells it at once"
        with database.begin() as session:
            session.execute(update(Plan).values(created_at=Plan.created_at - reconcile_turn(dependencies)))
        replan_elapsed_delays(dependencies)
        with database.begin() as session:
            asked = [request.reason for request in session.scalars(select(PlanRequest))]
        assert asked == (["news_put_off"] if len(told[-1]) < 4 else [])
        plan()
    assert [len(ids) for ids in told] == [1, 2, 3, 4]


def stored(database, id):
    with database.begin() as session:
        return session.get_one(Task, id).waiting["code"]


def reconcile_turn(dependencies):
    return timedelta(seconds=dependencies.settings.reconcile_seconds + 1)


def test_the_planner_remembers_where_each_task_is_planned(tenant, queue, dependencies):
    with dependencies.db.begin() as session:
        seen = snapshot.read(session, dependencies)
    assert {task.planned for task in seen.problem.queued} == {queue[0].id}
