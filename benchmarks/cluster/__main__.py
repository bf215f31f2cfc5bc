"""The load drill: `python -m benchmarks.cluster` (about 15 minutes), `--small` (a few minutes, writes nothing).

A Motet of its own, of real processes: history by SQL (history.py), each list page by page, a scrape with few rows and with
many, an upload, then 200 tenants who poll, wait and submit under Idempotency-Keys beside nodes that heartbeat, then a backup
and a restore of all of it into another database and folder.

The gate: no wrong answer, every acknowledged submission is there once, the scrape counts what the tables hold, and the restored
database and objects are those of the backup.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import uvloop

from benchmarks.cluster.heartbeats import Fleet, joined
from benchmarks.cluster.history import History, fill
from benchmarks.cluster.list_times import list_times, metrics_ms
from benchmarks.fake_node import FakeNode
from benchmarks.load_generators import quantile
from benchmarks.load_generators import spread as spread_of
from benchmarks.process_usage import Spent, stolen_seconds
from benchmarks.result_file import write_result
from benchmarks.storage import download, transfer_port, upload
from benchmarks.tenant_load import TENANTS, TenantLoad, callers_of, lost
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.stack import postgres_of
from deploy.devstack.state_folder import State
from service.database.engine import Database, driver_url
from service.database.timeouts import Timeouts
from service.metrics.ended_totals import fold
from service.schema import roles
from service.usage.daily_rollup import roll_up
from tests.walk.running_stack import RunningStack, running_stack

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "examples" / "gsm8k" / "validation.jsonl"
POLLS_PER_SECOND, SUBMISSIONS_PER_SECOND = 150, 10
NODES = 1000
SMALL = History(tasks=300, files=300, batches=30, audit=300, deliveries=300, plans=30)
_SWEEP = Timeouts(statement=300.0, lock=30.0, idle=900.0)  # as the queue worker has them
# the history is 90 days old, and may not be swept while it is measured
_KEPT = {f"MOTET_{name}_DAYS": "365" for name in ("DELIVERY", "PLAN", "PLAN_HISTORY", "PLACEMENT")}
_SPEC = {
    "search_space": {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]},
    "training": {"epochs": 1, "max_seq_len": 64},
    "early_exit": {"policy": "none"},
}


def ended_task(motet: RunningStack) -> tuple[str, dict[str, str]]:
    """A task that ended, beside a batch and a webhook with a message; and the paths of the lists below them."""
    node = FakeNode(motet.url, motet.redis_url, motet.join_token("first"), "first", 1, 0.2, lambda _: None)
    rows = [{"prompt": f"{at} + 1?", "completion": str(at + 1)} for at in range(20)]
    file = motet.upload(rows)
    spec = {"base_model": "base", "dataset": {"file_id": file}, **_SPEC}
    asked = {"url": "https://1.1.1.1/", "events": ["task.failed"]}
    hook_id = motet.http.post("/v1/webhooks", json=asked).json()["id"]
    assert motet.http.post(f"/v1/webhooks/{hook_id}/test").is_success
    assert motet.http.post("/v1/batches", json={"tasks": [spec]}).status_code == 201
    task_id = str(motet.http.post("/v1/tasks", json=spec).json()["id"])
    motet.ended(task_id)
    node.close()
    paths = (*("tasks", "batches", "files", "adapters", "webhooks", "models", "keys", "audit", "schedule"),)
    admins = ("nodes", "plans", "join-tokens", "tenants", "audit")
    found = {f"/v1/{name}": f"/v1/{name}" for name in paths} | {f"/v1/admin/{name}": f"/v1/admin/{name}" for name in admins}
    found |= {f"/openai/v1/{name}": f"/openai/v1/{name}" for name in ("files", "models", "fine_tuning/jobs")}
    found |= {"/v1/tasks?status=succeeded": "/v1/tasks?status=succeeded", "/v1/tasks?status=queued": "/v1/tasks?status=queued"}
    more = ("quotas", "files?unused=true", "files?unused=false", "tasks?text=no-such-text")
    found |= {f"/v1/{name}": f"/v1/{name}" for name in more}
    found |= {
        f"/v1/tasks/{{task_id}}/{name}": f"/v1/tasks/{task_id}/{name}" for name in ("jobs", "plan-history", "evaluations")
    }
    return task_id, found | {"/v1/webhooks/{webhook_id}/deliveries": f"/v1/webhooks/{hook_id}/deliveries"}


def scraped(admin: httpx.Client, owner: str) -> dict[str, bool]:
    """Whether the scrape's counts of ended tasks and jobs are those of their tables."""
    said = dict(line.rsplit(" ", 1) for line in admin.get("/metrics").text.splitlines() if not line.startswith("#"))
    agree = {}
    with psycopg.connect(driver_url(owner)) as connection:
        for table in ("tasks", "jobs"):
            ended = "succeeded" if table == "tasks" else "completed"
            (count,) = connection.execute(f"SELECT count(*) FROM {table} WHERE status = %s", [ended]).fetchone() or (-1,)
            agree[table] = float(said[f'motet_{table}{{status="{ended}"}}']) == count
    return agree


def busiest_month(owner: str) -> str:
    """The month in which most tasks ran, as 2026-11."""
    with psycopg.connect(driver_url(owner)) as connection:
        busiest = "SELECT to_char(month, 'YYYY-MM') FROM task_usage GROUP BY month ORDER BY count(*) DESC LIMIT 1"
        ((month,),) = connection.execute(busiest).fetchall()
    return str(month)


async def _drill(fleet: Fleet, load: TenantLoad, seconds: float, settle: float) -> None:
    over = asyncio.Event()
    beating = asyncio.ensure_future(fleet.run(over))
    await asyncio.sleep(settle)  # nodes read what they were given, and the planner has placed what there is room for
    fleet.beats.clear()
    await load.run(seconds)
    over.set()
    await beating


def drill(motet: RunningStack, nodes: int, seconds: float) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, int]]:
    """Figures, rows, and what must be zero."""
    plain = httpx.Client(base_url=motet.url, timeout=90)
    fleet = joined(plain, motet.admin, nodes)
    load = TenantLoad(motet.url, callers_of(plain, motet.admin, ROWS, "base"))
    load.polls_per_second, load.submissions_per_second, load.long_pollers = POLLS_PER_SECOND, SUBMISSIONS_PER_SECOND, TENANTS
    spent, stolen = Spent(motet.pids), stolen_seconds()
    uvloop.run(_drill(fleet, load, seconds, 2 * fleet.nodes[0].seconds))
    used, taken = spent.seconds(), stolen_seconds() - stolen
    figures = {
        "drill_poll_p99_ms": quantile(load.polls, 0.99),
        "drill_submit_p99_ms": quantile(load.submits, 0.99),
        "drill_polls_per_s": len(load.polls) / seconds,
        "drill_heartbeat_p99_ms": quantile(fleet.beats, 0.99),
        "drill_nodes": float(nodes),
        "drill_stolen_s": taken,
    }
    rows = [{"of": f"polls of {TENANTS} tenants, from when each was due"} | spread_of(load.polls)]
    rows += [{"of": "submissions under Idempotency-Keys, likewise"} | spread_of(load.submits)]
    rows += (
        [{"of": "long polls, beyond the seconds that they asked for"} | spread_of(load.long_polls)] if load.long_polls else []
    )
    rows += [{"of": f"heartbeats of {nodes} nodes, with {fleet.placements} placements"} | spread_of(fleet.beats)]
    rows += [{"of": "CPU seconds of the drill, its setup left out"} | used]
    for wrong in (*fleet.wrong[:5], *load.wrong[:5]):
        print(wrong, flush=True)
    return figures, rows, {"wrong answers": len(fleet.wrong) + len(load.wrong), "submissions lost or twice": lost(load, plain)}


def restored(motet: RunningStack, folder: Path) -> tuple[dict[str, float], bool]:
    """Seconds of a backup, and of its restore into another database and folder, which verifies all of it."""
    postgres = postgres_of(State(motet.state), choose_account())
    service = os.environ | motet.environment("api") | {"MOTET_BACKUP_URL": f"file://{folder / 'backups'}"}
    took = {"backup_s": _command("backup", service | {"MOTET_OWNER_DATABASE_URL": postgres.url()})}
    postgres.create_database("restored")
    target = {
        "MOTET_OWNER_DATABASE_URL": postgres.url("restored"),
        "MOTET_DATABASE_URL": postgres.url("restored", roles.SYSTEM),
        "MOTET_APP_DATABASE_URL": postgres.url("restored", roles.APP),
        "MOTET_STORAGE_DIR": str(folder / "restored"),
    }
    took["restore_s"] = _command("restore", service | target)  # compares rows and objects with the backup's, or fails
    objects = [
        {path.name for path in (place / "objects").glob("??/*")} for place in (motet.state / "storage", folder / "restored")
    ]
    return took, objects[0] == objects[1]


def _command(name: str, environment: dict[str, str]) -> float:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "service", name], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return time.monotonic() - began


def measure(history: History, nodes: int, seconds: float, megabytes: int, processes: int) -> tuple[dict[str, Any], ...]:
    """(gate, figures, rows)"""
    environment = {
        "MOTET_MAX_FILE_BYTES": str(10**11),
        "MOTET_MAX_FILE_ROWS": str(10**9),
        "MOTET_API_PROCESSES": str(processes),
    }
    environment |= _KEPT | transfer_port()
    with tempfile.TemporaryDirectory(prefix="motet-cluster-") as name:
        folder = Path(name)
        with running_stack(folder / "state", workers=0, **environment) as motet:
            admin = httpx.Client(base_url=motet.url, headers={"Authorization": f"Bearer {motet.admin}"}, timeout=90)
            owner = postgres_of(State(motet.state), choose_account()).url()
            task_id, paths = ended_task(motet)
            few = metrics_ms(admin)
            filled = fill(owner, task_id, history)
            print(filled, flush=True)
            db = Database(motet.database_url, pool_size=1, timeouts=_SWEEP)
            fold(db)  # as the sweep does every ten minutes
            roll_up(db)
            db.engine.dispose()
            many, agree = metrics_ms(admin), scraped(admin, owner)
            lists = list_times(motet.http, admin, paths)
            usage = list_times(motet.http, admin, {"/v1/usage": f"/v1/usage?month={busiest_month(owner)}"})[0]
            print(few, many, lists[:3], usage, flush=True)
            began = time.monotonic()
            file, sent = upload(motet, megabytes * 10**6)
            rate = file["bytes"] / 1e6 / (time.monotonic() - began)
            same = sent == file["sha256"] == download(motet, file["id"])
            figures, rows, zero = drill(motet, nodes, seconds)
            print(figures, zero, flush=True)
            took, whole = restored(motet, folder)
    figures |= {
        "list_ms_100k": lists[0]["median_ms"],
        "list_p99_ms_100k": max(row["p99_ms"] for row in lists),
        "usage_ms_100k": usage["median_ms"],
        "metrics_ms_few_rows": few,
        "metrics_ms_1m_rows": many,
        "upload_mb_s": rate,
        "points": float(filled["points"]),
        **took,
    }
    passed = all(agree.values()) and same and whole and not any(zero.values())
    gate = {"passed": passed, "scrape_agrees": agree, "same_sha256": same, "restored_objects_agree": whole} | zero
    machine = {"of": "machine", "cores": os.cpu_count(), "api_processes": processes, "load": "on the same cores as the service"}
    return gate, figures, {"rows": [machine, {"of": "history"} | filled, *rows, *lists, usage]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES, help="another number writes a file of its own")
    parser.add_argument("--small", action="store_true", help="a few hundred tasks and 20 nodes; writes no result")
    parser.add_argument("--points", type=int, default=100, help="of each of a million jobs (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the drill (%(default)s)")
    parser.add_argument("--api-processes", type=int, default=2)
    given = parser.parse_args()
    if given.small:
        gate, figures, _ = measure(SMALL, 20, 5.0, 5, given.api_processes)
        print(gate, figures)
        assert gate["passed"], gate
        return
    gate, figures, told = measure(replace(History(), points=given.points), given.nodes, given.seconds, 500, given.api_processes)
    print(gate, figures)
    print(write_result("cluster" if given.nodes == NODES else f"cluster_{given.nodes}", gate, figures, told["rows"]))


if __name__ == "__main__":
    main()
