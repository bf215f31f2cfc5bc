"""Without a collector nothing is traced, whatever a caller says."""

from sqlalchemy import select

from service.tasks.models import Task
from service.tracing import span_exporter
from tests.service.scraped import samples

CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"


def test_without_a_collector_nothing_is_traced(tenant, new_node, plan, database):
    node = new_node()
    task = tenant.post("/v1/tasks", json=tenant.spec(tenant.file()), headers={"traceparent": CALLER}).json()
    with database.begin() as session:
        assert session.scalars(select(Task.traceparent).where(Task.id == task["id"])).one() is None
    plan()
    assert node.take(task["id"]).given.traceparent is None
    assert not span_exporter.on()


def test_a_task_of_a_process_that_traces_is_not_exported_by_one_that_does_not(tenant, new_node, plan, database):
    """While settings are rolled out."""
    node, task = new_node(), tenant.task()
    with database.begin() as session:
        session.get_one(Task, task["id"]).traceparent = CALLER
    plan()
    taken = node.take(task["id"])
    assert taken.given.traceparent is None
    said = taken.body(taken.attached()) | {"spans": [{"name": "train", "began": 1.0, "ended": 2.0}]}
    assert taken.call("POST", "reports", said).status_code == 200


def test_dropped_spans_are_measured(admin):
    assert samples(admin.get("/metrics"))[("motet_trace_spans_dropped_total",)] == 0
