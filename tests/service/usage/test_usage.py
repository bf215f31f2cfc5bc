"""Usage: from rows that were made by hand, against sums made by hand."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select, update

from contract.states import ExitReason, JobStatus
from service.fleet.models import Node, Placement
from service.tasks.models import Task
from service.usage.usage_ledger import take_back
from tests.service.sample_tasks import jobs_of, placement


def test_nothing_was_used(tenant):
    tenant.task()
    usage = tenant.get("/v1/usage").json()
    assert (usage["data"], usage["next_cursor"]) == ([], None)
    assert set((usage["total"] | {"cost": 0}).values()) == {0}
    now = datetime.now(UTC)
    assert usage["start"] == f"{now:%Y-%m}-01T00:00:00Z"


def test_tokens_seconds_rewinds_and_savings(tenant, database):
    """Two jobs of batch size 4 on 20 rows, 10 steps each; one exits at step 4, and 2 of the other's steps are taken back, which
    were a quarter of what the first placement did."""
    task = tenant.task()
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == task["id"]).values(train_rows=20))
        ended, exited = jobs_of(session, task["id"])
        for job in (ended, exited):
            job.total_steps = 10
        placement(session, task["id"], tokens=3200, gpu_seconds=8.0, devices=2, evaluation_tokens=320)
        take_back(session, session.get_one(Task, task["id"]), kept_rows=24, lost_rows=8)
        ended.status, ended.step = JobStatus.COMPLETED, 10
        exited.status, exited.step, exited.exit_reason = JobStatus.EXITED, 4, ExitReason.UNDERPERFORMING
        placement(session, task["id"], tokens=3200, gpu_seconds=16.0, devices=1, evaluation_tokens=320)
        of_task = select(Placement.node_id).where(Placement.task_id == task["id"])
        session.execute(update(Node).where(Node.id.in_(of_task)).values(devices=[{"index": 0, "type": "H100"}]))
    said = tenant.get("/v1/usage").json()
    assert said["device_types"] == ["H100"]
    # 56 rows are visible (40 + 16), 8 were taken back; a row took 100 tokens and half a second
    (used,) = said["data"]
    assert used == {
        "task_id": task["id"],
        "name": None,
        "created_at": task["created_at"],
        "deleted_at": None,
        "trained_tokens": 5600,
        "evaluation_tokens": 560,
        "gpu_seconds": pytest.approx(28.0),
        "rewound_tokens": 800,
        "saved_tokens": 2400,
        "saved_gpu_seconds": pytest.approx(12.0),
        "trained_rows": 56,
        "cost": None,
    }


def test_months_and_pages_and_tenants(tenant, new_tenant, database):
    other = new_tenant()
    tasks = [tenant.task()["id"] for _ in range(3)]
    with database.begin() as session:
        for task_id in [*tasks, other.task()["id"]]:
            placement(session, task_id, tokens=10, gpu_seconds=1.0, evaluation_tokens=1)
        late, next_month = datetime(2026, 1, 31, 23, 59, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
        placement(session, tasks[0], tokens=500, gpu_seconds=1.0, at=late, evaluation_tokens=50)
        placement(session, tasks[1], tokens=700, gpu_seconds=1.0, at=next_month, evaluation_tokens=70)
    first = tenant.get("/v1/usage", params={"limit": 2}).json()
    second = tenant.get("/v1/usage", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [task["task_id"] for task in [*first["data"], *second["data"]]] == tasks[::-1]
    assert second["next_cursor"] is None
    assert first["total"]["trained_tokens"] == second["total"]["trained_tokens"] == 30
    for month, tokens in (("2026-01", 500), ("2026-02", 700), ("2026-03", 0)):
        assert tenant.get("/v1/usage", params={"month": month}).json()["total"]["trained_tokens"] == tokens


@pytest.mark.parametrize("query", [{"month": "2026-13"}, {"month": "26-01"}, {"cursor": "x"}, {"limit": 0}])
def test_a_wrong_question(tenant, query):
    response = tenant.get("/v1/usage", params=query)
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, next(iter(query)))
