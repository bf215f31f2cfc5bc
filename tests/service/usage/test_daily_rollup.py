"""Usage by day: the same before, between and after roll-ups, and after retention has removed what was rolled up."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, func, select, text, update

from contract.states import ExitReason, JobStatus, TaskStatus
from service.background.retention import Retention, forget
from service.fleet.models import Node, Placement
from service.metrics.ended_totals import fold
from service.tasks.models import Task
from service.usage import daily_rollup
from service.usage.models import DailyUsage, MonthlySavings, RolledUpThrough, TaskUsageRecord, TenantDailyUsage
from tests.service.background.test_queue import until
from tests.service.lock_waits import waiting_for_locks
from tests.service.sample_tasks import jobs_of, placement

NOW = timedelta(0)
JANUARY = [datetime(2026, 1, day, 12, tzinfo=UTC) for day in (3, 3, 20)]


@pytest.fixture(autouse=True)
def nothing_rolled_up(database):
    with database.begin() as session:
        for model in (DailyUsage, TenantDailyUsage, MonthlySavings, RolledUpThrough, Placement, TaskUsageRecord):
            session.execute(delete(model))


@pytest.fixture
def searched(tenant, database):
    """A task that ended, with a job that exited early, and another that goes on; three placements, on two types of GPU."""
    tasks = [tenant.task()["id"] for _ in range(2)]
    with database.begin() as session:
        for at, (moment, kind) in enumerate(zip(JANUARY, ("H100", "H100", "L4"), strict=True)):
            id = placement(session, tasks[at % 2], tokens=100 * (at + 1), gpu_seconds=5.0, devices=2, at=moment, ended=at < 2)
            of = select(Placement.node_id).where(Placement.id == id).scalar_subquery()
            session.execute(update(Node).where(Node.id == of).values(devices=[{"index": 0, "type": kind}]))
        ended = session.get_one(Task, tasks[0])
        ended.train_rows, ended.status, ended.ended_at = 40, TaskStatus.SUCCEEDED, func.clock_timestamp()
        for job in jobs_of(session, tasks[0]):
            job.status, job.exit_reason, job.step, job.total_steps = JobStatus.EXITED, ExitReason.UNDERPERFORMING, 2, 10
    return tasks


def usage(tenant):
    return tenant.get("/v1/usage", params={"month": "2026-01"}).json()


def rolled(database):
    with database.begin() as session:
        return list(session.scalars(select(DailyUsage.gpu_seconds).order_by(DailyUsage.day)))


def test_reads_are_the_same_before_and_after(tenant, searched, database):
    before, costs = usage(tenant), tenant.get("/v1/usage/costs.csv?month=2026-01").text
    assert [(day["day"], day["device_type"], day["gpu_seconds"], day["trained_tokens"]) for day in before["days"]] == [
        ("2026-01-03", "H100", 20.0, 300),
        ("2026-01-20", "L4", 10.0, 300),
    ]
    assert before["device_types"] == ["H100", "L4"]
    assert (before["total"]["trained_tokens"], before["total"]["gpu_seconds"]) == (600, 30.0)
    assert before["total"]["saved_tokens"] == before["data"][1]["saved_tokens"] > 0
    daily_rollup.roll_up(database)  # nothing ended an hour ago
    assert (rolled(database), usage(tenant)) == ([], before)
    for _ in range(2):  # nothing twice
        daily_rollup.roll_up(database, NOW)
        assert rolled(database) == [10.0, 10.0]  # the third is still live
        assert usage(tenant) == before
        assert tenant.get("/v1/usage/costs.csv?month=2026-01").text == costs
    with database.begin() as session:
        session.execute(update(Placement).where(Placement.ended_at.is_(None)).values(ended_at=func.clock_timestamp()))
    daily_rollup.roll_up(database, NOW)
    assert (rolled(database), usage(tenant)) == ([10.0, 10.0, 10.0], before)


def test_a_long_history_goes_in_several_transactions(tenant, searched, database, monkeypatch):
    before = usage(tenant)
    monkeypatch.setattr(daily_rollup, "_MOST", 1)
    marks = set[datetime]()
    with database.begin() as session:
        until = session.scalars(select(func.clock_timestamp())).one()
    while daily_rollup._advance(database, until):
        with database.begin() as session:
            marks.add(session.scalars(select(RolledUpThrough.moment)).one())
        assert usage(tenant) == before
    assert marks
    assert max(marks) < until
    assert (rolled(database), usage(tenant)) == ([10.0, 10.0], before)


def test_what_was_removed_before_the_first_roll_up_stays_billed(tenant, searched, database):
    before = usage(tenant)
    with database.begin() as session:
        session.execute(delete(Placement).where(Placement.ended_at.is_not(None)))
    daily_rollup.roll_up(database, NOW)
    after = usage(tenant)
    assert after["total"] == before["total"]
    assert after["days"][0] | {"cost": None} == {
        "day": "2026-01-01",
        "device_type": "unknown",
        "trained_tokens": 300,
        "gpu_seconds": 20.0,
        "cost": None,
    }


def test_retention_removes_nothing_that_is_not_rolled_up(tenant, searched, database):
    keep = Retention(placements=NOW)
    daily_rollup.roll_up(database)
    fold(database, NOW)
    forget(database, keep)
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(Placement)) == 3
    before = usage(tenant)
    daily_rollup.roll_up(database, NOW)
    fold(database, NOW)
    forget(database, keep)
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(Placement)) == 2  # of the ended task there are none left
    assert usage(tenant) == before


def test_one_rolls_up_at_a_time(searched, database):
    with database.begin() as session:
        session.execute(select(func.pg_advisory_xact_lock(daily_rollup._LOCK)))
        daily_rollup.roll_up(database, NOW)
        assert rolled(database) == []


def test_it_waits_for_a_change_of_a_task_and_the_change_never_for_it(tenant, database):
    """Tasks are locked in the order of their ids, as planners and cancellations do, or the two could wait for each other."""
    first, *others = sorted(tenant.task()["id"] for _ in range(20))
    with database.begin() as session:
        for task in (*others, first):
            placement(session, task, tokens=100)
    with database.begin() as session:  # with statistics Postgres groups by hashes, in no order
        session.execute(text("ANALYZE placements, tasks, nodes"))
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            session.execute(select(Task.id).where(Task.id == first).with_for_update())
            rolled_up = pool.submit(daily_rollup.roll_up, database, NOW)
            until(lambda: waiting_for_locks(database))
            free = select(Task.id).where(Task.id.in_(others)).with_for_update(skip_locked=True)
            assert set(session.scalars(free)) == set(others)
            session.execute(update(Task).where(Task.id == first).values(version=Task.version + 1))
        rolled_up.result()
    assert len(rolled(database)) == 20
