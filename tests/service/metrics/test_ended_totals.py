"""Ended rows are counted once: kept totals, what ended since, and what is open are together what a count of all rows says."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update

from service.background.retention import Retention, forget
from service.database.engine import clock
from service.fleet.models import Placement
from service.metrics.ended_totals import SUMS, by_status, fold, placements_by_end
from service.metrics.models import EndedTotal, EndedTotalsThrough
from service.tasks.models import Job, Task
from service.usage.daily_rollup import roll_up
from tests.service.fleet.scripted import moved

AT_ONCE = timedelta(0)
LONG_AGO = timedelta(days=200)


@pytest.fixture
def counted(database):
    """What a scrape counts: tasks and jobs by status, and placements with their sums by how they ended."""

    def read() -> tuple[dict[str, int], dict[str, int], dict[str, tuple[float, ...]]]:
        with database.begin() as session:
            tasks, jobs = (dict(session.execute(by_status(kind)).all()) for kind in (Task, Job))
            ends = placements_by_end().c
            sums = select(ends.reason, func.sum(ends.rows), *(func.sum(ends[name]) for name in SUMS)).group_by(ends.reason)
            return tasks, jobs, {reason: tuple(map(float, values)) for reason, *values in session.execute(sums)}

    return read


@pytest.fixture
def ended(database, tenant, new_node, plan):
    """Run a task to its cancelled end, after some training; its id."""

    def run(name: str) -> str:
        node, task = new_node(name), tenant.task()
        plan()
        taken = node.take(task["id"])
        taken.report(
            taken.attached(),
            moved(0, "warmup"),
            {"kind": "throughput", "steps": 3, "tokens": 50, "seconds": 2.0, "micro_batches": 3, "forwards": 3},
        )
        tenant.post(f"/v1/tasks/{task['id']}/cancel")
        plan()
        return task["id"]

    return run


def test_a_fold_changes_no_count_and_an_ended_row_is_counted_once(database, tenant, ended, counted):
    ended("first")
    tenant.task()
    before = counted()
    assert before[0] == {"cancelled": 1, "validating": 1}
    assert before[1] == {"cancelled": 2, "pending": 2}
    ((_, sums),) = before[2].items()
    assert sums[:3] == (1, 50, 0)
    fold(database, AT_ONCE)
    assert counted() == before
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(EndedTotal)) == 3
    ended("second")
    fold(database, AT_ONCE)
    fold(database, AT_ONCE)
    tasks, jobs, ends = counted()
    assert (tasks["cancelled"], jobs["cancelled"]) == (2, 4)
    assert sorted(values[:2] for values in ends.values()) == [(1, 0), (2, 100)], "the other task has been placed"


def test_what_ended_within_the_hour_is_read_from_its_row(database, ended, counted):
    """Its transaction may still be open while a later one is counted."""
    ended("lately")
    fold(database)
    with database.begin() as session:
        assert session.scalars(select(EndedTotal.kind)).all() == []
        assert session.get_one(EndedTotalsThrough, 1).moment < clock(session) - timedelta(minutes=59)
    assert counted()[0] == {"cancelled": 1}


def test_placements_that_retention_deletes_stay_counted(database, ended, counted):
    ended("old")
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=clock(session) - LONG_AGO))
        session.execute(update(Task).values(ended_at=clock(session) - LONG_AGO))
    before = counted()
    fold(database)
    assert forget(database, Retention())["placements"] == 0, "usage by day has yet to count them"
    roll_up(database)
    assert forget(database, Retention())["placements"] == 1
    assert counted() == before
    with database.begin() as session:
        session.execute(text("DELETE FROM ended_totals"))
        session.execute(text("DELETE FROM ended_totals_through"))
    fold(database)
    assert counted()[2] == before[2], "those that were deleted before the first fold"


def test_a_scrape_reads_no_ended_row_by_scanning_its_table(database, ended):
    """Each part of the counts has its index, so none grows with the history."""
    ended("planned")
    fold(database, AT_ONCE)
    with database.begin() as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))
        for counts in (by_status(Task), by_status(Job), select(placements_by_end())):
            words = str(counts.compile(session.get_bind(), compile_kwargs={"literal_binds": True}))
            explained = "\n".join(session.scalars(text("EXPLAIN " + words.replace(":", "\\:"))))
            for table in ("tasks", "jobs", "placements"):
                assert f"Seq Scan on {table}" not in explained, explained
