"""Sharing on real rows: tasks join executors of their base, their owners are told, bounds are kept, and crashes blame nobody
wrongly."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from sqlalchemy import select, update

from service.batches.models import Batch
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.scheduler import planner
from service.scheduler.models import Plan
from service.scheduler.state import snapshot
from service.tasks.models import Task
from tests.service.fleet.scripted import completed, throughput
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks
from tests.service.scheduler.planned import live, start
from tests.service.scheduler.sharing import GPU, LONG, SHARES, SHORT, history, shared, task_of


def test_a_task_joins_the_executor_of_another_tenant_and_is_told(tenant, new_tenant, gpu, plan, database):
    other = new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    assert first.given.device_indexes == second.given.device_indexes == [0]
    assert (second.given.max_slowdown, second.given.weight) == (3.0, 1.0)
    (said,) = (change["said"] for change in history(other, second.given.task_id) if change["kind"] == "placed")
    assert said["sentence"].startswith(f"Shares 1 GPU of node {gpu.name} with 1 task; ")
    assert "times slower than alone, ends" in said["sentence"]
    assert 1 <= said["slowdown"] <= 3
    assert task_of(other, second.given.task_id)["placement"]["beside"] == 1
    assert task_of(tenant, first.given.task_id)["placement"]["beside"] == 1
    (node,) = tenant.get("/v1/schedule").json()["nodes"]
    assert (node["free"], [run["beside"] for run in node["running"]]) == (0, [1, 1])
    assert {run["task_id"] for run in node["running"]} == {first.given.task_id, None}
    with database.begin() as session:
        (join,) = session.scalars(select(Plan.decision).order_by(Plan.id.desc()).limit(1)).one()["joins"]
    assert (join["task"], join["beside"]) == (second.given.task_id, first.given.task_id)


def test_who_shares_with_nobody_waits(tenant, new_tenant, new_node, gpu, plan, admin):
    first = tenant.task(**LONG)["id"]
    plan()
    start(gpu, first)
    strict = new_tenant()
    admin.request("PATCH", f"/v1/admin/tenants/{strict.tenant_id}", json={"max_slowdown": 1})
    waits = [
        tenant.task(**SHORT, isolation="dedicated")["id"],
        tenant.task(**SHORT, max_slowdown=1.1)["id"],
        tenant.task(**SHORT, precision="nf4")["id"],
        strict.task(**SHORT)["id"],
    ]
    plan()
    assert [placement.task_id for placement in gpu.desired().placements] == [first]
    admin.request("PATCH", f"/v1/admin/tenants/{strict.tenant_id}", json={"max_slowdown": None})
    plan()
    assert [placement.task_id for placement in gpu.desired().placements] == [first, waits[3]]


def test_nobody_joins_a_dedicated_task_nor_a_worker_that_cannot_share(tenant, new_node, plan):
    dedicated = new_node(said=SHARES | GPU)
    first = tenant.task(**LONG, isolation="dedicated")["id"]
    plan()
    start(dedicated, first)
    old = new_node(said=GPU)
    second = tenant.task(**LONG)["id"]
    plan()
    start(old, second)
    tenant.task(**SHORT)
    plan()
    assert len(dedicated.desired().placements) == len(old.desired().placements) == 1


def test_who_may_be_joined_has_the_earlier_deadline_of_its_own_and_its_batchs(tenant, gpu, plan, database, dependencies):
    first = tenant.task(**LONG)["id"]
    plan()
    start(gpu, first)
    with database.begin() as session:
        now, batch = clock(session), {"id": "batch_due", "tenant_id": tenant.tenant_id, "objective": "makespan"}
        session.add(Batch(**batch, deadline=None, task_ids=[first]))
        session.flush()
        session.get_one(Task, first).batch_id = "batch_due"

    def due(own: int | None, batchs: int | None) -> int | None:
        """Hours from `now`."""
        own_at, batchs_at = (None if hours is None else now + timedelta(hours=hours) for hours in (own, batchs))
        with database.begin() as session:
            task = session.get_one(Task, first)
            task.spec = task.spec | {"deadline": None if own_at is None else own_at.isoformat()}
            session.get_one(Batch, "batch_due").deadline = batchs_at
        dependencies.estimate_cache.clear()
        with database.begin() as session:
            seen = snapshot.read(session, dependencies)
        (member,) = seen.problem.running[0].members
        left = member.deadline
        return None if left is None else round((seen.at + timedelta(seconds=left) - now).total_seconds() / 3600)

    assert [due(5, None), due(None, 5), due(5, 3), due(3, 5), due(None, None)] == [5, 5, 3, 3, None]


def test_an_estimate_says_what_sharing_would_mean(tenant, new_tenant, gpu, plan):
    first = tenant.task(**LONG)["id"]
    plan()
    start(gpu, first)
    other = new_tenant()
    spec = other.spec(other.file(), **SHORT)
    said = other.post("/v1/tasks/estimate", json=spec).json()
    assert said["sharing"].startswith(f"Shares 1 GPU of node {gpu.name} with 1 task; ")
    assert said["slowdown"] >= 1
    assert said["waiting"] is None
    alone = other.post("/v1/tasks/estimate", json=spec | {"isolation": "dedicated"}).json()
    assert (alone["sharing"], alone["slowdown"]) == (None, 1.0)
    assert alone["expected_end"] > said["expected_end"]


def test_a_broken_bound_moves_the_youngest_joiner_and_says_why(tenant, new_tenant, gpu, plan):
    other = new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=2.9))
    plan()
    assert not any(placement.leave for placement in gpu.desired().placements)
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2))
    assert plan() == 1, "a broken bound asks for a plan"
    assert {p.task_id: p.leave for p in gpu.desired().placements} == {first.given.task_id: False, second.given.task_id: True}
    second.report({"kind": "detached"})
    (left,) = (change["said"] for change in history(other, second.given.task_id) if change["kind"] == "left")
    assert "4.2 times slower than alone, beyond its bound of 3" in left["detail"]
    assert task_of(tenant, first.given.task_id)["placement"]["slowdown"] is None, "4.2 was measured beside the one that left"


def test_a_heartbeat_that_holds_the_eldest_may_still_lock_the_youngest(tenant, new_tenant, gpu, plan, database):
    """It locks its node's placements by their ids."""
    first, second = shared(tenant, new_tenant(), gpu, plan)
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2))
    assert first.id < second.id
    with ThreadPoolExecutor(1) as other:
        with database.begin() as session:
            session.execute(select(Placement.id).where(Placement.id == first.id).with_for_update())
            planned = other.submit(plan)
            until(lambda: waiting_for_locks(database))
            session.execute(select(Placement.id).where(Placement.id == second.id).with_for_update())
        planned.result(PATIENCE)
    assert [p.placement_id for p in gpu.desired().placements if p.leave] == [second.id]


def test_a_slowdown_that_was_measured_beside_one_that_left_counts_no_more(tenant, new_tenant, gpu, plan):
    """Its report was on its way meanwhile. Believed, it would move the next of those who stay."""
    other, third = new_tenant(), new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    task = third.task(**SHORT)["id"]
    plan()
    last = start(gpu, task)

    def measured() -> float | None:
        return task_of(tenant, first.given.task_id)["placement"]["slowdown"]

    late = throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2, beside=[second.id, last.id])
    first.report(late)
    assert measured() == 4.2
    plan()
    assert [p.task_id for p in gpu.desired().placements if p.leave] == [task]
    first.report(late)
    assert measured() is None, "it was asked to leave"
    last.report({"kind": "detached"})
    first.report(late)
    assert measured() is None
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=1.4, beside=[second.id]))
    assert measured() == 1.4


def test_a_slowdown_that_one_caused_who_has_finished_moves_nobody(tenant, new_tenant, gpu, plan):
    """The plan that its end asks for comes before the next report of those who stay."""
    other, third = new_tenant(), new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    third.task(**SHORT)
    plan()
    (last,) = (start(gpu, one.task_id) for one in gpu.desired().placements if one.placement_id not in (first.id, second.id))
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2, beside=[second.id, last.id]))
    for job in (0, 1):
        last.report(last.adapter(job, 1.0), completed(job))
    assert plan() >= 1, "its end asks for a plan"
    assert not any(placement.leave for placement in gpu.desired().placements)
    (node,) = tenant.get("/v1/schedule").json()["nodes"]
    assert [run["slowdown"] for run in node["running"]] == [None, None]
    first.report(throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2, beside=[second.id]))
    assert plan() == 1, "a broken bound asks for a plan"
    assert [p.placement_id for p in gpu.desired().placements if p.leave] == [second.id]


def test_an_executor_that_dies_twice_leaves_its_tasks_alone(tenant, new_tenant, gpu, plan, rested, database):
    other = new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    gpu.lost(first, second)
    with database.begin() as session:
        node = session.scalars(select(Node).where(Node.id == gpu.id)).one()
        assert len(node.losing) == 1, "one executor is one loss of its node, however many tasks it had"
        assert node.device_losses == {"0": 1}
        assert {task.lost_executors for task in session.scalars(select(Task))} == {1}
    rested()
    again = [start(gpu, one.task_id) for one in gpu.desired().placements]
    assert len(again) == 2, "after one crash they may share"
    gpu.lost(*again)
    rested()
    (alone,) = live(database)
    ran, waits = (first, second) if alone.task_id == first.given.task_id else (second, first)
    callers = {first.given.task_id: tenant, second.given.task_id: other}
    ran, waits = ran.given.task_id, waits.given.task_id
    assert "It runs alone: 2 executors in a row were lost" in task_of(callers[waits], waits)["waiting"]["sentence"]
    said = history(callers[ran], ran)[0]["said"]
    assert "It runs alone: 2 executors" in said["sentence"]


def test_the_end_of_one_leaves_the_other_alone(tenant, new_tenant, gpu, plan, database):
    other = new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    for job in (0, 1):
        second.report(second.adapter(job, 1.0), completed(job))
    plan()
    (alone,) = live(database)
    assert (alone.task_id, alone.beside) == (first.given.task_id, 0)


def test_a_join_is_dropped_where_the_executor_went_meanwhile(
    tenant, new_tenant, gpu, dependencies, plan, database, monkeypatch
):
    other = new_tenant()
    first = tenant.task(**LONG)["id"]
    plan()
    placed = start(gpu, first)
    second = other.task(**SHORT)["id"]

    solve = planner.solve

    def leaves(*args):
        decision = solve(*args)
        assert [join.task for join in decision.joins] == [second]
        with database.begin() as session:
            session.execute(update(Placement).where(Placement.id == placed.id).values(leaving="paused"))
        return decision

    monkeypatch.setattr(planner, "solve", leaves)
    plan()
    assert [one.task_id for one in live(database)] == [first]
    assert task_of(other, second)["status"] == "queued"
