"""Bulk-loads a hundred million loss points into a running Motet's database, then times a dashboard's queries over them.

The points belong to many ended tasks; one task has the summaries that the service makes when a job ends.
"""

import time
from typing import Any

import httpx
import psycopg

from service.database.engine import Database, driver_url
from service.database.timeouts import Timeouts
from service.tasks.curves.curve_writer import summarise

TASKS, JOBS, STEPS, CHUNK = 100, 50, 20_000, 256
RESOLUTION = 400  # about a chart's width in pixels


def fill(database_url: str, template: str) -> dict[str, Any]:
    """Copy the task `template` many times, with JOBS jobs of STEPS points each; returns numbers of points, bytes and
    seconds."""
    began = time.monotonic()
    with psycopg.connect(driver_url(database_url), autocommit=True) as connection:
        for statement in _STATEMENTS:
            connection.execute(statement, {"template": template, "tasks": TASKS, "steps": STEPS, "chunk": CHUNK})
        points, size = connection.execute(_MEASURE).fetchone() or (0, 0)
    return {"points": int(points), "table_bytes": int(size), "fill_seconds": time.monotonic() - began}


_STATEMENTS = (
    # one random curve in pieces, and its steps: a bulk load should cost copying, not making numbers
    """CREATE TEMP TABLE pieces AS SELECT c AS number, c * %(chunk)s + 1 AS first_step,
       least((c + 1) * %(chunk)s, %(steps)s) AS last_step FROM generate_series(0, (%(steps)s - 1) / %(chunk)s) c""",
    """CREATE TEMP TABLE filling AS SELECT number, first_step, last_step,
       ARRAY(SELECT generate_series(first_step, last_step)) AS steps,
       ARRAY(SELECT 1 + random() + 2.0 / s FROM generate_series(first_step, last_step) s) AS "values" FROM pieces""",
    """INSERT INTO tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id', 'task_many_' || n))).*
       FROM tasks t, generate_series(1, %(tasks)s) n WHERE t.id = %(template)s""",
    """INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object(
         'id', 'job_many_' || n || '_' || j.index, 'task_id', 'task_many_' || n))).*
       FROM jobs j, generate_series(1, %(tasks)s) n WHERE j.task_id = %(template)s""",
    """INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
       SELECT j.id, 'train_loss', f.first_step, f.last_step, f.steps, f."values"
       FROM jobs j, filling f WHERE j.id LIKE 'job\\_many\\_%%' AND %(chunk)s > 0""",
    "ANALYZE point_chunks",
)
_MEASURE = "SELECT sum(cardinality(steps)), pg_total_relation_size('point_chunks') FROM point_chunks"


def ask(url: str, key: str, database_url: str, repeats: int = 9) -> list[dict[str, Any]]:
    """Milliseconds of queries over HTTP: a task with summaries, one without, and part of one point by point."""
    db = Database(database_url, pool_size=1, timeouts=Timeouts(statement=3600.0, lock=10.0, idle=3600.0))
    with db.begin() as session:
        for index in range(JOBS):
            summarise(session, f"job_many_7_{index}")
    db.engine.dispose()
    questions = {
        "ended": (f"task_many_7/metrics?resolution={RESOLUTION}", repeats),
        "without summaries": (f"task_many_8/metrics?resolution={RESOLUTION}", 3),
        "one job, point by point": ("task_many_9/metrics?job=3", repeats),
    }
    rows = []
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
        for name, (path, times) in questions.items():
            rows.append({"question": name} | _timed(client, f"/v1/tasks/{path}", times))
    return rows


def _timed(client: httpx.Client, path: str, times: int) -> dict[str, Any]:
    taken, curves, points = [], 0, 0
    for _ in range(times):
        began = time.perf_counter()
        answer = client.get(path)
        taken.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text
        curves, points = len(answer.json()["data"]), sum(len(curve["steps"]) for curve in answer.json()["data"])
    taken.sort()
    return {"median_ms": taken[len(taken) // 2], "least_ms": taken[0], "most_ms": taken[-1], "curves": curves, "points": points}
