"""The schedule in pages: whole however it is cut, nothing left out while tasks start, and nobody else's ids in a cursor."""

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest
from motet import Client


def pages(tenant, limit: int) -> list[dict]:
    found, cursor = [], None
    while True:
        query = {"limit": limit} | ({"cursor": cursor} if cursor else {})
        answer = tenant.get("/v1/schedule", params=query)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        cursor = found[-1]["next_cursor"]
        if cursor is None:
            return found


@pytest.fixture
def crowd(tenant, new_tenant, new_node, plan):
    """Three nodes, two of them busy; behind them seven tasks of two tenants."""
    nodes, other = [new_node(f"page{at}", slots=1) for at in range(3)], new_tenant()
    running = [tenant.task()["id"] for _ in range(3)]
    plan()
    placements = {}
    for node in nodes:
        for placed in node.desired().placements:
            placements[placed.task_id] = node.take(placed.task_id)
    waiting = [(tenant if at % 2 else other).task()["id"] for at in range(7)]
    plan()
    return other, running, placements, waiting


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 9, 10, 11, 100])
def test_pages_of_any_size_are_the_whole(tenant, crowd, limit):
    (whole,) = pages(tenant, 100)
    cut = pages(tenant, limit)
    assert whole["next_cursor"] is None
    assert len(whole["waiting"]) == whole["waiting_total"] == 7
    assert [node for page in cut for node in page["nodes"]] == whole["nodes"]
    assert [one for page in cut for one in page["waiting"]] == whole["waiting"]
    assert [one["place"] for one in whole["waiting"]] == sorted(one["place"] for one in whole["waiting"])
    assert all(1 <= len(page["nodes"]) + len(page["waiting"]) <= limit for page in cut)
    assert {page["waiting_total"] for page in cut} == {7}


def test_a_task_that_starts_between_two_pages_hides_no_other(tenant, crowd, plan):
    _, running, _, waiting = crowd
    first = tenant.get("/v1/schedule", params={"limit": 5}).json()
    assert len(first["waiting"]) == 2
    seen = {one["task_id"] for one in first["waiting"]}
    tenant.post(f"/v1/tasks/{running[0]}/cancel")
    plan()
    rest = tenant.get("/v1/schedule", params={"limit": 100, "cursor": first["next_cursor"]}).json()
    own = {task for at, task in enumerate(waiting) if at % 2}
    here = {one["task_id"] for one in rest["waiting"]} | seen
    started = {task for task in own if tenant.get(f"/v1/tasks/{task}").json()["status"] == "running"}
    assert own - started <= here
    assert len(rest["waiting"]) >= 7 - 2 - 1


def test_a_cursor_names_nobody_elses_task(tenant, crowd, database):
    _, _, _, waiting = crowd
    for limit in range(1, 10):
        for page in pages(tenant, limit):
            if page["next_cursor"]:
                text = base64.urlsafe_b64decode(page["next_cursor"] + "==").decode()
                assert not any(task in text for task in waiting)


@pytest.mark.parametrize(
    "cursor",
    ["x", "W10", "WzEsMiwzXQ", "WyJhXHUwMDAwIl0", "WyJcdWQ4MDAiXQ", "bnVsbA", "WzEuNSwiYSJd", "W251bGwsImEiXQ", "é", "[" * 190],
)
def test_what_is_no_cursor_is_refused(tenant, cursor):
    answer = tenant.get("/v1/schedule", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor"), answer.text


@pytest.mark.parametrize("limit", ["0", "101", "x", "-1"])
def test_what_is_no_limit_is_refused(tenant, limit):
    answer = tenant.get("/v1/schedule", params={"limit": limit})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "limit")


def test_the_client_follows_the_pages(server, tenant, new_node, nothing_left, plan):
    new_node("followed", slots=1)
    spec = tenant.spec(tenant.file())
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: tenant.post("/v1/tasks", json=spec).json()["id"], range(131)))
    plan()
    with Client(server.url, tenant.key) as client:
        found = client.schedule()
    named = [one.task_id for one in found.waiting] + [one.task_id for node in found.nodes for one in node.running]
    assert sorted(named) == sorted(made)
    assert found.waiting_total == len(found.waiting) == 130
