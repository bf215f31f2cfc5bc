"""The dashboard's speed in headless Chromium: a tenant with 1,000 tasks, one of them a sweep of 120 jobs x 5,000 points.

`python -m benchmarks.web [--repeats 9]` starts a Motet of its own without a worker, fills its database, and reads what the
browser measured: first contentful paint of the task list, the longest of its events from input to paint, the task page from
the start of the navigation until its curves are painted, and the bytes of that page, uncompressed.

The gate: the list counts 1,000 tasks, the task page has 120 rows and as many curves, nothing is written to the browser's
console, and no other host is asked.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from typing import Any

import psycopg
from motet.local.stack_process import Stack
from playwright.sync_api import Page, sync_playwright

from benchmarks.api_load import Running
from benchmarks.result_file import write_result
from service.database.engine import Database, driver_url
from service.database.timeouts import Timeouts
from service.tasks.curves.curve_writer import summarise

TASKS, JOBS, STEPS, EVALUATIONS, ENDED = 1000, 120, 5000, 30, 90
_SWITCHES = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

_STATEMENTS = (
    # the list: copies of one task in the states that a tenant's tasks are in
    """INSERT INTO tasks SELECT (jsonb_populate_record(t, jsonb_build_object('id', 'task_many_' || n, 'name', 'sweep ' || n,
         'status', (ARRAY['succeeded', 'failed', 'cancelled', 'paused', 'succeeded'])[1 + n % 5],
         'created_at', t.created_at - n * interval '1 minute'))).*
       FROM tasks t, generate_series(1, {tasks} - 1) n WHERE t.id = {template}""",
    """INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object('id', 'job_many_' || n || '_' || j.index,
         'task_id', 'task_many_' || n, 'status', 'completed', 'step', 100, 'total_steps', 100,
         'best_val_loss', 1 + random(), 'best_step', 90))).*
       FROM jobs j, generate_series(1, {tasks} - 1) n WHERE j.task_id = {template} AND j.index < 8""",
    """INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
       SELECT j.id, 'val_loss', 10, 100, ARRAY(SELECT generate_series(10, 100, 10)),
         ARRAY(SELECT 1 + random() + 2.0 / s FROM generate_series(10, 100, 10) s)
       FROM jobs j WHERE j.id LIKE 'job\\_many\\_%%'""",
    # the sweep: jobs that ended early or late, and some at work
    """UPDATE jobs SET status = CASE WHEN index < {ended} THEN 'exited' ELSE 'training' END,
         exit_reason = CASE WHEN index < {ended} THEN 'underperforming' END,
         step = {steps}, total_steps = {steps}, warmup_steps = 250, promoted = index >= 60, warmup_val_loss = 2 + random(),
         best_val_loss = 1 + random(), best_step = {steps} - 10 WHERE task_id = {template}""",
    "UPDATE tasks SET status = 'running', train_rows = 20000, started_at = clock_timestamp() WHERE id = {template}",
    """INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
       SELECT j.id, 'train_loss', c, least(c + 255, {steps}), ARRAY(SELECT generate_series(c, least(c + 255, {steps}))),
         ARRAY(SELECT 1 + j.index / 100.0 + random() / 5 + 20.0 / (s + 5) FROM generate_series(c, least(c + 255, {steps})) s)
       FROM jobs j, generate_series(1, {steps}, 256) c WHERE j.task_id = {template}""",
    """INSERT INTO point_chunks (job_id, series, first_step, last_step, steps, "values")
       SELECT j.id, 'val_loss', {gap}, {steps}, ARRAY(SELECT generate_series({gap}, {steps}, {gap})),
         ARRAY(SELECT 1.1 + j.index / 100.0 + 20.0 / s FROM generate_series({gap}, {steps}, {gap}) s)
       FROM jobs j WHERE j.task_id = {template}""",
    "ANALYZE",
)


def fill(motet: Running) -> str:
    """The sweep's id."""
    space = {"method": "random", "n": JOBS, "learning_rate": [1e-5 * 1.3**n for n in range(30)], "rank": [4, 8, 16, 32]}
    made = motet.http.post("/v1/tasks", json=motet.spec | {"name": "sweep 0", "search_space": space | {"batch_size": [4, 8]}})
    assert made.is_success, made.text
    task: str = made.json()["id"]
    numbers = {"tasks": TASKS, "steps": STEPS, "ended": ENDED, "gap": STEPS // EVALUATIONS}
    with psycopg.connect(driver_url(motet.database_url), autocommit=True) as connection:
        for statement in _STATEMENTS:
            connection.execute(statement.format(template=f"'{task}'", **numbers))  # type: ignore[call-overload]
        ended = connection.execute("SELECT id FROM jobs WHERE task_id = %s AND status = 'exited'", [task]).fetchall()
    db = Database(motet.database_url, pool_size=1, timeouts=Timeouts(statement=3600.0, lock=10.0, idle=3600.0))
    with db.begin() as session:
        for (job_id,) in ended:
            summarise(session, job_id)
    db.engine.dispose()
    return task


_WATCH = """window.longest = 0; new PerformanceObserver(list => { for (const one of list.getEntries())
    window.longest = Math.max(window.longest, one.duration); }).observe({type: 'event', durationThreshold: 16});"""
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
_BYTES = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .reduce((sum, one) => sum + one.decodedBodySize, 0)"""


def fcp(page: Page, url: str) -> float:
    page.goto(url)
    while (found := page.evaluate(_PAINT)) is None:
        page.wait_for_timeout(20)
    return float(found)


def task_page(page: Page, url: str) -> float:
    page.goto(url)
    page.wait_for_selector("html[data-drawn]")
    return float(page.evaluate("() => performance.getEntriesByName('drawn')[0].startTime"))


def interactions(page: Page, url: str, sweep: str) -> float:
    """The longest time from an input to its paint: keys on the list, then hovering, toggling and zooming on the task page."""
    page.goto(url + "/tasks")
    page.evaluate(_WATCH)
    for key in "jjjxkx":
        page.keyboard.press(key)
        page.wait_for_timeout(60)
    longest = float(page.evaluate("window.longest"))
    task_page(page, f"{url}/tasks/{sweep}")
    page.evaluate(_WATCH)
    for name in ("show-train", "log-axis", "show-train", "log-axis"):
        page.click(f"#{name}")
        page.wait_for_timeout(60)
    box = page.locator("#plot canvas").bounding_box()
    assert box is not None
    for at in range(20):
        page.mouse.move(box["x"] + 60 + at * 20, box["y"] + 150 + at * 3)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    return max(longest, float(page.evaluate("window.longest")))


def measure(motet: Running, sweep: str, repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures, and the gate."""
    url, complaints = str(motet.http.base_url).rstrip("/"), list[str]()
    program = os.environ.get("MOTET_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_SWITCHES)
        page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else complaints.append(asked.url))
        page.goto(motet.http.post("/v1/sign-in-links").json()["url"])
        page.wait_for_url("**/tasks")
        paints = [fcp(page, f"{url}/tasks") for _ in range(repeats)]
        total = page.text_content("#total")
        opened = [task_page(page, f"{url}/tasks/{sweep}") for _ in range(repeats)]
        rows, weight = page.locator("#job-rows tr").count(), float(page.evaluate(_BYTES)) / 1000
        with page.expect_response("**/curves") as answered:
            page.reload()
        pack = answered.value.json()
        longest = interactions(page, url, sweep)
        browser.close()
    curves = len(pack["train"])
    passed = (total, rows, curves, complaints) == (f"{TASKS:,}", JOBS, JOBS, [])
    figures = {
        "fcp_ms": round(statistics.median(paints), 1),
        "interaction_ms": longest,
        "task_page_ms": round(statistics.median(opened), 1),
        "page_kb": round(weight, 1),
    }
    return figures, {"passed": passed, "tasks": total, "rows": rows, "curves": curves, "complaints": complaints}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MOTET_STATE_DIR"] = folder
        with Stack(["--workers", "0"]) as stack:
            motet = Running.of(stack)
            figures, gate = measure(motet, fill(motet), repeats)
    rows = [{"what": name, "value": value} for name, value in figures.items()]
    print(write_result("web", gate, figures, [*rows, {"cores": os.cpu_count(), "load_average": os.getloadavg()[0]}]))
    print(figures)


if __name__ == "__main__":
    main()
