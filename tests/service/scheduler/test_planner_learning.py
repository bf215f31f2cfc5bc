"""What the planner learns from reports, and what it tells: durations, speeds, histories, the schedule, estimates."""

from datetime import UTC, date, datetime
from types import SimpleNamespace

import pytest
from sqlalchemy import select, update

from service.fleet.models import Node, Placement
from service.scheduler.dry_run import DraftPlan
from service.scheduler.models import Plan, PlanRequest, SurvivalRow, ThroughputProfile
from service.tasks.models import Task
from service.usage.prices import Prices
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import completed, exited, moved, points, throughput
from tests.service.scheduler.planned import start


def test_latencies_are_kept(tenant, new_node, plan, database):
    new_node()
    task = tenant.task()["id"]
    plan()
    with database.begin() as session:
        kept = session.scalars(select(Plan)).one()
        placed = session.scalars(select(Placement).where(Placement.task_id == task)).one()
        assert kept.latency_seconds > 0
        assert 0 < placed.waited_seconds < 60
        assert placed.expected_low <= placed.expected_end <= placed.expected_high


# ---- what is learned -------------------------------------------------------------------------------------------------


def test_an_exit_wave_that_moves_the_end_asks_for_a_plan_and_a_small_one_does_not(tenant, new_node, plan, database):
    node = new_node()
    space = {"learning_rate": [1e-4 * at for at in range(1, 9)], "batch_size": [4]}
    task = tenant.task(search_space=space, early_exit={"policy": "none"})["id"]
    plan()
    placement = node.take(task)
    jobs = range(8)
    placement.report(placement.attached(steps=20_000, warmup=10_000), *(moved(job, "warmup") for job in jobs))
    placement.report(throughput(steps=1, tokens=8 * 100, seconds=2.0))
    plan()

    def asked():
        with database.begin() as session:
            return [row.reason for row in session.scalars(select(PlanRequest))]

    placement.report(points(0, [1]))
    assert asked() == []
    placement.report(*(exited(job, 1, "overfitting") for job in range(7)))
    assert asked() == ["end_moved"]
    before = tenant.get("/v1/schedule").json()["nodes"][0]["running"][0]["expected_end"]
    plan()
    assert tenant.get("/v1/schedule").json()["nodes"][0]["running"][0]["expected_end"] < before


def test_finished_tasks_teach_speeds_and_lives(tenant, new_node, plan, database):
    node = new_node()
    task = tenant.task()["id"]
    plan()
    placement = start(node, task)
    done = {"steps": 10, "tokens": 1000, "rows": 300}
    placement.report(points(0, [1, 2, 3]), throughput(**done, seconds=5.0), throughput(**done))
    wide = {"steps": 10, "tokens": 2000, "rows": 600, "device_steps": 20, "device_seconds": 9.0}
    placement.report(throughput(**wide, seconds=5.0))  # a profile is of one device, however many took the steps
    placement.report(exited(0, 3, "diverging"), placement.adapter(1, 1.0), completed(1))
    with database.begin() as session:
        profile = session.scalars(select(ThroughputProfile)).one()
        lived = session.scalars(select(SurvivalRow)).one()
    assert (profile.base_model, profile.device_type, profile.measured) == ("small", "cpu", 3)
    assert (profile.tokens, profile.rows) == (128, 32)  # of a step, rounded up
    assert (lived.late_exits, lived.warm_exits) == (0.5, 0.0)  # of a task, jobs behind the boundary count together
    assert lived.warm_lived == 2.0
    placement.send({"kind": "detached"})
    with database.begin() as session:
        assert session.scalars(select(SurvivalRow)).one().warm_lived == 2.0, "once"


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_the_schedule_names_own_tasks_alone(new_tenant, new_node, plan):
    node, mine, theirs = new_node(slots=1), new_tenant(), new_tenant()
    runs = mine.task(name="secret")["id"]
    plan()
    waits_ = theirs.task()["id"]
    plan()
    own, foreign = mine.get("/v1/schedule").json(), theirs.get("/v1/schedule").json()
    (seen,) = own["nodes"]
    assert (seen["name"], seen["free"], seen["running"][0]["task_id"], seen["running"][0]["name"]) == (
        node.name,
        0,
        runs,
        "secret",
    )
    assert own["waiting"][0]["task_id"] is None
    assert own["waiting"][0]["sentence"] is None
    assert own["waiting"][0]["expected_start"] is not None
    assert foreign["waiting"][0]["task_id"] == waits_
    assert foreign["waiting"][0]["code"] in ("waiting_for_capacity", "fair_share")
    assert runs not in str(foreign)
    assert "secret" not in str(foreign)
    assert waits_ not in str(own)


def test_a_tasks_history_tells_each_change(tenant, new_tenant, new_node, plan):
    task = tenant.task()["id"]
    plan()
    node = new_node()
    plan()
    placement = start(node, task)
    tenant.post(f"/v1/tasks/{task}/pause")
    placement.report(placement.checkpoint({0: 0, 1: 0}), {"kind": "detached"})
    changes = tenant.get(f"/v1/tasks/{task}/plan-history").json()["data"]
    assert [change["kind"] for change in changes] == ["left", "placed", "waits"]
    left, placed, waited = (change["said"] for change in changes)
    assert (left["reason"], left["status"]) == ("paused", "paused")
    assert placed["node"] == node.name
    assert waited["code"] == "no_node_fits"
    assert new_tenant().get(f"/v1/tasks/{task}/plan-history").status_code == 404
    page = tenant.get(f"/v1/tasks/{task}/plan-history?limit=2").json()
    assert [c["kind"] for c in tenant.get(f"/v1/tasks/{task}/plan-history?cursor={page['next_cursor']}").json()["data"]] == [
        "waits"
    ]


def test_an_estimate_says_what_a_task_would_take_and_stores_nothing(tenant, new_node, plan, database):
    node = new_node()
    first = tenant.task()["id"]
    plan()
    node.take(first)
    rows = [{"prompt": "x" * (2000 if at == 3 else 20), "completion": "y"} for at in range(20)]
    spec = tenant.spec(tenant.file(rows))
    before = dump(database)
    answer = tenant.post("/v1/tasks/estimate", json=spec)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert dump(database) == before
    assert said["jobs"] == 2
    assert 0 < said["tokens"] < said["full_tokens"]
    assert 0 < said["gpu_seconds"]["low"] <= said["gpu_seconds"]["expected"] <= said["gpu_seconds"]["high"]
    assert first in said["waiting"]
    assert said["expected_start_interval"][0] <= said["expected_start"] <= said["expected_start_interval"][1]
    assert [(p["field"], p["line"], p["code"]) for p in said["problems"]] == [("dataset.file_id", 4, "row_truncated")]
    wide = tenant.post("/v1/tasks/estimate", json=spec | {"gpus": 8}).json()
    assert wide["expected_start"] is None
    assert ("gpus", "gpus_idle", "is 8, but the search space makes jobs for 2 and none is split: 6 would stand idle") in [
        (problem["field"], problem["code"], problem["message"]) for problem in wide["problems"]
    ]
    refused = tenant.post("/v1/tasks/estimate", json=spec | {"base_model": "smal"})
    assert refused.status_code == 422
    assert "did you mean 'small'" in refused.text


def test_an_estimates_cost_is_by_the_type_that_it_would_start_on(tenant, admin, new_node, plan, database):
    nodes = [new_node(), new_node()]
    with database.begin() as session:
        for node, kind in zip(nodes, ("cpu", "L4"), strict=True):
            of = update(Node).where(Node.name == node.name)
            session.execute(of.values(devices=[{"index": 0, "type": kind, "memory_bytes": 8 * 2**30}]))
    spec = tenant.spec(tenant.file())

    def estimate(**changes):
        return tenant.post("/v1/tasks/estimate", json=spec | changes).json()

    def price(kind, hour):
        assert admin.put("/v1/admin/prices", json={"device_type": kind, "per_hour": hour}).status_code == 200

    assert (estimate()["cost"], estimate()["currency"]) == (None, "USD")
    price("cpu", 3600.0)
    price("L4", 3600.0)
    said = estimate()
    assert said["expected_start"] is not None
    assert said["cost"] == pytest.approx(said["gpu_seconds"])  # both speeds are the same, as long as nothing was learned
    assert estimate(gpus=2)["cost"] is None  # no node has two


def test_an_estimate_without_a_start_costs_between_the_cheapest_and_the_dearest_type():
    """An hour, half as long on the faster type; which of them it will be is not known."""
    took = {"slow": 3600.0, "fast": 1800.0, "unpriced": 60.0}
    work = SimpleNamespace(
        estimate=lambda task, kind, gpus: SimpleNamespace(seconds=took[kind], low=took[kind] / 2, high=took[kind] * 2)
    )
    draft = object.__new__(DraftPlan)
    draft._seen = SimpleNamespace(at=datetime(2026, 5, 1, tzinfo=UTC), work=work)
    draft._prices = Prices({"slow": ((date(2026, 5, 1), 1.0),), "fast": ((date(2026, 1, 1), 10.0),)}, None)
    assert draft._cost(Task(), "fast", {"slow": 2, "fast": 2}).model_dump() == {"expected": 10.0, "low": 1.0, "high": 20.0}
    assert draft._cost(Task(), "fast", {"slow": 2}).model_dump() == {"expected": 2.0, "low": 1.0, "high": 4.0}
    assert draft._cost(Task(), "fast", {"slow": 2, "unpriced": 2}) is None
    assert draft._cost(Task(), "", {}) is None
