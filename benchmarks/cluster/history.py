"""Fills a running Motet's database with history: copies, by SQL, of one task that ended, and all that belongs to it.

One tenant owns all of it, which is the worst case of lists. Each job has its points. Knows no HTTP.
"""

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from service.database.engine import driver_url

_COLUMNS = """SELECT column_name FROM information_schema.columns WHERE table_name = %s AND table_schema = 'public'
    AND is_generated = 'NEVER' ORDER BY ordinal_position"""
_AGE = "clock_timestamp() - interval '90 days' + n * interval '7 seconds'"  # oldest first: ids ascend with time


@dataclass(frozen=True)
class History:
    """How much there is to be: tasks, jobs of each, points of each job; other rows by table."""

    tasks: int = 100_000
    jobs: int = 10
    points: int = 100
    files: int = 100_000
    batches: int = 10_000
    audit: int = 100_000
    deliveries: int = 100_000
    plans: int = 1_000

    @property
    def all_points(self) -> int:
        return self.tasks * self.jobs * self.points


def fill(database_url: str, task_id: str, history: History) -> dict[str, Any]:
    """Copy the ended task `task_id`, and its tenant's newest file, batch, message and audit entry. Returns rows by table, and
    the seconds that it took."""
    began = time.monotonic()
    with psycopg.connect(driver_url(database_url), autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET session_replication_role = replica")  # what is copied refers to what is copied
        rows = {table: _copies(connection, table, task_id, history) for table in _TABLES}
        rows["jobs"] = _copy(connection, "jobs", _JOBS, task_id, history.tasks, history.jobs)
        if history.points:
            rows["point_chunks"] = _points(connection, history)
        connection.execute("VACUUM ANALYZE")  # as autovacuum has it long before a history is that old
    return {"rows": rows, "points": history.all_points, "fill_seconds": time.monotonic() - began}


def _numbered(prefix: str) -> str:
    return f"'{prefix}_h' || lpad(n::text, 8, '0')"


_OF_TASK = {"task_id": _numbered("task"), "created_at": _AGE}
_ENDED = {"ended_at": f"{_AGE} + interval '5 seconds'"}
_JOBS = _OF_TASK | _ENDED | {"id": _numbered("job") + " || '_' || m", "index": "m - 1"}
_OWN = "s.task_id = %(task)s"
_LAST = "s.id = (SELECT max(id) FROM {table} WHERE {which})"
_TENANTS = "tenant_id = (SELECT tenant_id FROM tasks WHERE id = %(task)s)"
# table -> (rows of history, what differs from the row that is copied, which row that is)
_TABLES: dict[str, tuple[str, dict[str, str], str]] = {
    "tasks": (
        "tasks",
        {"id": _numbered("task"), "created_at": _AGE, "queued_at": _AGE, "started_at": _AGE, "name": "'search ' || n"}
        | {"winner_job_id": _numbered("job") + " || '_1'"}
        | _ENDED,
        "s.id = %(task)s",
    ),
    "task_events": ("tasks", _OF_TASK, _OWN),
    "task_usage": (
        "tasks",
        {"task_id": _numbered("task"), "month": f"date_trunc('month', ({_AGE}) AT TIME ZONE 'UTC')::date"},
        _OWN,
    ),
    "placements": ("tasks", _OF_TASK | _ENDED | {"id": _numbered("placement")}, _OWN),
    "adapters": (
        "tasks",
        _OF_TASK | {"id": _numbered("adapter"), "job_id": _numbered("job") + " || '_1'"},
        _LAST.format(table="adapters", which="task_id = %(task)s"),
    ),
    "plan_changes": (
        "tasks",
        _OF_TASK | {"id": _numbered("change")},
        _LAST.format(table="plan_changes", which="task_id = %(task)s"),
    ),
    "files": ("files", {"id": _numbered("file"), "created_at": _AGE}, _LAST.format(table="files", which=_TENANTS)),
    "batches": ("batches", {"id": _numbered("batch"), "created_at": _AGE}, _LAST.format(table="batches", which=_TENANTS)),
    "audit_entries": (
        "audit",
        {"id": _numbered("audit"), "created_at": _AGE},
        _LAST.format(table="audit_entries", which=_TENANTS),
    ),
    "webhook_deliveries": (
        "deliveries",
        {"id": _numbered("msg"), "created_at": _AGE, "status": "'failed'"},  # as none of that age is still tried
        _LAST.format(table="webhook_deliveries", which=_TENANTS),
    ),
    "plans": ("plans", {"id": _numbered("plan"), "created_at": _AGE}, _LAST.format(table="plans", which="true")),
}


def _copies(connection: psycopg.Connection[Any], table: str, task_id: str, history: History) -> int:
    amount, changes, which = _TABLES[table]
    return _copy(connection, table, changes, task_id, getattr(history, amount), 1, which)


def _copy(
    connection: psycopg.Connection[Any], table: str, changes: dict[str, str], task_id: str, count: int, each: int,
    which: str = "s.task_id = %(task)s AND s.index = 0",
) -> int:  # fmt: skip
    """`count` times `each` copies of a row, n and m in turn. Returns how many."""
    columns = [name for (name,) in connection.execute(_COLUMNS, [table])]
    given = ", ".join(f'"{name}"' for name in columns)
    made = ", ".join(changes.get(name, f's."{name}"') for name in columns)
    series = "generate_series(1, %(count)s) n, generate_series(1, %(each)s) m"
    statement = f"INSERT INTO {table} ({given}) SELECT {made} FROM {table} s, {series} WHERE {which}"
    return connection.execute(statement, {"task": task_id, "count": count, "each": each}).rowcount


def _points(connection: psycopg.Connection[Any], history: History) -> int:
    connection.execute(
        """CREATE TEMP TABLE curve AS SELECT ARRAY(SELECT generate_series(1, %(points)s)) AS steps,
           ARRAY(SELECT 1 + random() + 2.0 / s FROM generate_series(1, %(points)s) s) AS "values" """,
        {"points": history.points},
    )
    statement = """INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
        SELECT j.id, 'train_loss', 1, %(points)s, c.steps, c."values" FROM jobs j, curve c WHERE j.id LIKE 'job\\_h%%'"""
    return connection.execute(statement, {"points": history.points}).rowcount
