"""Usage is numbers: written when it happens, the same before and after every sweep, and equal to what the rows say."""

from datetime import timedelta

import pytest
from sqlalchemy import event, func, select, update

from service.audit.models import AuditEntry
from service.background import retention
from service.background.garbage_collection import sweep
from service.background.reconciler import requeue_running_without_placement
from service.background.retention import Retention, delete_in_batches, forget
from service.database.engine import clock, id_at, new_id
from service.fleet.models import Placement
from service.metrics.ended_totals import fold
from service.metrics.fleet_metrics import FleetMetrics
from service.scheduler.models import Plan, PlanChange
from service.scheduler.state.usage_shares import shares
from service.tasks.models import PointChunk, Task, TaskEvent
from service.usage.daily_rollup import roll_up
from service.usage.models import DailyUsage, TenantDailyUsage, TenantUsage
from service.usage.usage_ledger import drift, month_at, trained_in
from service.webhooks.models import Delivery, Webhook
from tests.service.fleet.scripted import completed, devices, exited, moved, points, throughput

NOTHING = Retention(*[timedelta(0)] * 6)
SPACE = {"learning_rate": [1e-4, 2e-4, 3e-4], "batch_size": [4]}


@pytest.fixture
def trained(tenant, new_node, plan, rested):
    """A task that was lost twice and then ended: of 18 rows, batches of 4, 5 steps an epoch."""
    node, task = new_node(), tenant.task(search_space=SPACE)
    plan()
    first = node.take(task["id"])
    first.report(first.attached(steps=20, warmup=2), *(moved(job, "warmup") for job in range(3)))
    first.report(points(0, range(1, 9)), first.checkpoint({0: 8}), throughput(8, tokens=3000, seconds=6.0))
    first.report(points(0, [9, 10]), throughput(2, tokens=600, seconds=3.0, evaluation_tokens=60, evaluation_seconds=1.0))
    assert node.lost(first).status_code == 204
    plan()
    second = node.take(task["id"])
    second.report(points(0, range(9, 13)), throughput(4, tokens=700))
    assert node.lost(second).status_code == 204
    rested()
    last = node.take(task["id"])
    last.report(moved(0, "training", 8), points(0, range(9, 21)), throughput(12, tokens=2400, seconds=5.0))
    last.report(last.adapter(0, 1.0), completed(0, loss=1.0), moved(1, "warmup"), moved(2, "warmup"))
    last.report(exited(1, 4), exited(2, 5))
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["status"] == "succeeded"
    return task["id"]


def usage(tenant):
    return tenant.get("/v1/usage").json()


def test_a_rewind_writes_what_it_took_back(tenant, trained, database):
    """6 of the 36 rows of the first placement (steps 9 and 10), and all 14 of the second."""
    (used,) = usage(tenant)["data"]
    assert (used["trained_tokens"], used["rewound_tokens"]) == (3000 + 2400, 600 + 700)
    assert used["evaluation_tokens"] == 50
    assert used["gpu_seconds"] == pytest.approx((6.0 + 3.0 + 1.0) * 5 / 6 + 5.0)
    assert used["trained_rows"] == 72 + 16 + 18
    rows = 72 + 16 + 18 + 20
    assert used["saved_tokens"] == round((72 - 16 + 72 - 18) * (3600 + 700 + 2400) / rows)
    with database.begin() as session:
        ran = session.execute(select(Placement.tokens, Placement.rewound_tokens).order_by(Placement.created_at)).all()
        assert [tuple(one) for one in ran] == [(3600, 600), (700, 700), (2400, 0)]
        task = session.get_one(Task, trained)
        hidden = select(func.sum(func.cardinality(PointChunk.steps))).where(PointChunk.hidden_by.is_not(None))
        assert session.scalar(hidden) == 6
        assert (task.rewound_rows, task.kept_rows) == (20, 30)


def test_on_two_gpus_each_second_counts_twice_billed_or_taken_back(tenant, new_node, plan, database):
    """Of 10 steps, all beyond the checkpoint at 8 are taken back: 6 of 36 rows."""
    node, task = new_node(slots=2), tenant.task(search_space=SPACE | {"learning_rate": [1e-4]}, gpus=2)
    plan()
    placed = node.take(task["id"])
    placed.report(placed.attached(steps=20, warmup=2), moved(0, "warmup"))
    placed.report(points(0, range(1, 11)), placed.checkpoint({0: 8}), throughput(10, tokens=1000, seconds=10.0))
    assert usage(tenant)["data"][0]["gpu_seconds"] == pytest.approx(20.0)
    assert node.lost(placed).status_code == 204

    def told() -> list[float]:
        said = usage(tenant)
        return [said["data"][0]["gpu_seconds"], sum(day["gpu_seconds"] for day in said["days"])]

    kept = pytest.approx([20.0 * 30 / 36] * 2)
    assert told() == kept
    assert tenant.post(f"/v1/tasks/{task['id']}/cancel").status_code == 200
    roll_up(database, timedelta(0))
    assert told() == kept


def test_a_rewind_long_after_its_placements_end_is_taken_off_its_day(dependencies, tenant, new_node, plan, database):
    """The reconciler could not rewind the task until usage was rolled up."""
    node, task = new_node(), tenant.task(search_space=SPACE)
    plan()
    placed = node.take(task["id"])
    placed.report(placed.attached(steps=20, warmup=2), moved(0, "warmup"), points(0, range(1, 11)))
    placed.report(placed.checkpoint({0: 8}), throughput(10, tokens=1000, seconds=10.0))
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=clock(session), end_reason="nobody knows"))
    roll_up(database, timedelta(0))
    requeue_running_without_placement(dependencies)
    for _ in range(2):
        said = usage(tenant)
        (by_ledger,), (by_day,) = said["data"], said["days"]
        assert by_ledger["trained_tokens"] == by_day["trained_tokens"] == 1000 - 167
        assert by_ledger["gpu_seconds"] == pytest.approx(by_day["gpu_seconds"])
        roll_up(database, timedelta(0))
    with database.begin() as session:
        assert [*session.scalars(select(DailyUsage.tokens))] == [*session.scalars(select(TenantDailyUsage.tokens))] == [833]


def test_a_node_that_comes_back_with_other_devices_changes_no_use_of_before(tenant, new_node, plan, database):
    node = new_node("worker-0", said={"devices": devices(1, kind="L4")})
    task = tenant.task()["id"]
    plan()
    placed = node.take(task)
    placed.report(placed.attached(), moved(0, "warmup"), throughput(seconds=3600.0))
    assert tenant.post(f"/v1/tasks/{task}/cancel").status_code == 200
    before = usage(tenant)["days"]
    assert [(day["device_type"], day["gpu_seconds"]) for day in before] == [("L4", 3600.0)]
    node.said = {"devices": devices(1, kind="H200")}
    node.reboot()
    assert tenant.get(f"/v1/tasks/{task}").json()["placement"]["device_type"] == "L4"
    assert usage(tenant)["days"] == before
    roll_up(database, timedelta(0))
    assert usage(tenant)["days"] == before
    with database.begin() as session:
        (share,) = shares(session, clock(session), 3600.0, {}, {tenant.tenant_id: 1})
    assert list(share.use) == ["L4"]


def test_the_counter_equals_the_sum_over_all_placements(tenant, trained, database):
    with database.begin() as session:
        billed = func.sum(Placement.tokens - Placement.rewound_tokens)
        own = select(billed).join(Task, Task.id == Placement.task_id).where(Task.tenant_id == tenant.tenant_id)
        month = month_at(session.scalars(select(func.clock_timestamp())).one())
        assert trained_in(session, tenant.tenant_id, month) == session.scalar(own) == 5400
        assert drift(session, month) == []
        assert tenant.get("/v1/quotas").json()["month_tokens"]["used"] == 5400
        session.execute(update(TenantUsage).values(tokens=TenantUsage.tokens + 1))
        assert drift(session, month) == [tenant.tenant_id]
        session.rollback()


@pytest.mark.parametrize("deleted", [False, True])
def test_usage_is_the_same_before_and_after_every_sweep(dependencies, tenant, trained, database, deleted):
    if deleted:
        assert tenant.delete(f"/v1/tasks/{trained}").status_code == 204
    for count in (fold, roll_up):  # what ended just now is counted too, so that it may be deleted
        count(dependencies.db, settled=timedelta(0))
    before, quotas, measured = usage(tenant), tenant.get("/v1/quotas").json(), executors(tenant)
    openai = tenant.get(f"/openai/v1/fine_tuning/jobs/{trained}").json()
    assert openai.get("trained_tokens") == (None if deleted else before["total"]["trained_tokens"])
    assert before["total"]["rewound_tokens"] == 1300
    for keep in (Retention(), NOTHING, NOTHING):
        sweep(dependencies.db, dependencies.storage, keep)
        assert usage(tenant) == before
        assert tenant.get("/v1/quotas").json()["month_tokens"] == quotas["month_tokens"]
        assert executors(tenant) == measured
        assert tenant.get(f"/openai/v1/fine_tuning/jobs/{trained}").json().get("trained_tokens") == openai.get("trained_tokens")
    with database.begin() as session:
        visible = PointChunk.hidden_by.is_(None)
        gone = [select(Placement), select(PlanChange), select(Plan), select(PointChunk).where(~visible)]
        gone += [select(TaskEvent), select(PointChunk)] if deleted else []
        assert [session.scalars(one).first() for one in gone] == [None] * len(gone)
        assert (session.scalars(select(PointChunk)).first() is None) == deleted
        assert (session.get_one(Task, trained).emptied_at is not None) == deleted


def executors(tenant):
    """What Prometheus is told of all placements that there ever were."""
    with tenant.client.app.state.motet.system.begin() as session:
        families = FleetMetrics(session, tenant.client.app.state.motet.settings)._executors()
        return {(f.name, *s.labels.values()): s.value for f in families for s in f.samples}


def test_rows_go_in_bounded_batches_and_nobody_waits_for_a_lock(database, tenant, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 4)
    old, young = audit_rows(database, tenant, 10, days=400), audit_rows(database, tenant, 2, days=300)
    deleted: list[int] = []

    @event.listens_for(database.engine, "after_cursor_execute")
    def count(connection, cursor, statement, *rest):
        if "DELETE FROM audit_entries" in statement:
            deleted.append(cursor.rowcount)

    with database.engine.connect() as other:
        other.execute(select(AuditEntry.id).where(AuditEntry.id == old[0]).with_for_update())
        forget(database, Retention())
        assert left(database) >= {old[0], *young}
        assert left(database).isdisjoint(old[1:])
    assert deleted == [4, 4, 1]
    forget(database, Retention())
    assert left(database).isdisjoint(old)
    event.remove(database.engine, "after_cursor_execute", count)


def audit_rows(database, tenant, count, days):
    with database.begin() as session:
        moment = session.scalars(select(func.clock_timestamp())).one() - timedelta(days=days)
        ids = [id_at("audit", moment)[:-10] + new_id("x")[-10:] for _ in range(count)]
        entry = {"tenant_id": tenant.tenant_id, "key_id": "k", "action": "a", "targets": [], "request_id": "r"}
        session.add_all(AuditEntry(id=id, created_at=moment, **entry) for id in ids)
    return ids


def left(database):
    with database.begin() as session:
        return set(session.scalars(select(AuditEntry.id)))


def test_a_message_goes_after_its_time_whether_it_was_delivered_or_not(database, tenant):
    with database.begin() as session:
        now = session.scalars(select(func.clock_timestamp())).one()
        hook = Webhook(id=new_id("hook"), tenant_id=tenant.tenant_id, url="https://example.org", events=[], secret=b"")
        session.add(hook)
        session.flush()
        for days, status in ((31, "delivered"), (31, "pending"), (29, "delivered"), (1, "pending")):
            id = id_at("msg", now - timedelta(days=days))[:-6] + new_id("x")[-6:]
            about = {"tenant_id": tenant.tenant_id, "webhook_id": hook.id, "type": "t", "payload": "", "next_at": now}
            session.add(Delivery(id=id, status=status, **about))
    forget(database, Retention())
    with database.begin() as session:
        kept = select(Delivery.status).where(Delivery.webhook_id == hook.id).order_by(Delivery.id)
        assert list(session.scalars(kept)) == ["delivered", "pending"]


def test_a_live_task_keeps_its_placements(dependencies, tenant, new_node, plan, database):
    node, task = new_node(), tenant.task()
    plan()
    assert node.lost(node.take(task["id"])).status_code == 204
    forget(dependencies.db, NOTHING)
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(Placement)) == 1
    assert delete_in_batches(dependencies.db, Placement, Placement.ended_at.is_not(None)) == 1
