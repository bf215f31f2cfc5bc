"""API load test on one machine, all loads at once: pollers, a storm of submissions, event streams, and a worker's loss points.

`python -m benchmarks.api_load [--seconds 20] [--api-processes 2] [--without-100m]` starts a Motet of its own without a trainer,
loads it from this process, restarts the API under open streams, lets 200 tenants poll and submit under keys of their own
(tenant_load.py), then inserts a hundred million points and queries them.

The gate: every acknowledged point is stored once, every stream got every event once and in order, across the restart too, every
acknowledged submission is there once, and every request got the expected answer.
"""

import argparse
import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import uvloop
from motet.local.stack_process import Event, Stack, ready_of

from benchmarks.bulk_points import JOBS, ask, fill
from benchmarks.load_generators import (
    POLLERS,
    REPORT_SECONDS,
    SERIES,
    STREAMS,
    SUBMISSIONS,
    SUBMITTERS,
    Load,
    Placed,
    quantile,
    spread,
)
from benchmarks.process_usage import Spent, family, memory_mb, stolen_seconds
from benchmarks.result_file import write_result
from benchmarks.tenant_load import TENANTS, WAIT_SECONDS, TenantLoad, callers_of, lost
from service.database.engine import driver_url
from tests.service.fleet.scripted import ScriptedNode, moved

ROOT = Path(__file__).parent.parent


@dataclass
class Running:
    """A running Motet, with what the load generators need of it."""

    events: Iterator[Event]
    http: httpx.Client
    key: str
    admin_key: str
    pid: int
    programs: dict[str, int]
    database_url: str
    join_token: str
    spec: dict[str, Any]

    @classmethod
    def of(cls, stack: Stack) -> "Running":
        events = stack.events()
        event = next(event for event in events if ready_of(event))
        keys = json.loads((Path(event["state_dir"]) / "credentials.json").read_text())
        http = httpx.Client(base_url=event["api_url"], headers={"Authorization": f"Bearer {keys['demo_key']}"}, timeout=60)
        model = {"name": "base", "source": str(ROOT / "examples" / "base-model")}
        made = http.post("/v1/admin/models", json=model, headers={"Authorization": f"Bearer {keys['admin_key']}"})
        assert made.is_success, made.text
        with (ROOT / "examples" / "gsm8k" / "validation.jsonl").open("rb") as rows:
            file_id = http.post("/v1/files", files={"file": rows}).json()["id"]
        asked = {"node_name": "loader"}
        token = http.post("/v1/admin/join-tokens", json=asked, headers={"Authorization": f"Bearer {keys['admin_key']}"}).json()
        pids = event["pids"]
        pid = pids["api"]
        lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        url = environment["MOTET_DATABASE_URL"]
        spec = {"base_model": "base", "dataset": {"file_id": file_id}}
        return cls(events, http, keys["demo_key"], keys["admin_key"], pid, pids, url, token["secret"], spec)

    def sized(self, jobs: int) -> dict[str, Any]:
        """A task's spec with this many jobs."""
        rates = [1e-4 * (1 + n / 1000) for n in range(jobs)]
        return self.spec | {"search_space": {"learning_rate": rates, "batch_size": [4]}}

    def task(self, jobs: int) -> str:
        answer = self.http.post("/v1/tasks", json=self.sized(jobs))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def placed(self) -> Placed:
        """A task of SERIES jobs, placed on a fake node and started."""
        node = ScriptedNode(self.http, self.join_token, "loader").register()
        task_id, until = self.task(SERIES), time.monotonic() + 60
        while task_id not in {placement.task_id for placement in node.desired().placements}:
            assert time.monotonic() < until, "the planner placed nothing"
            time.sleep(0.1)
        taken = node.take(task_id)
        taken.report(taken.attached(steps=10**6), *(moved(job, "warmup") for job in range(SERIES)))
        return Placed(taken.id, task_id, taken.given.token, taken.given.fence)

    def restart(self) -> float:
        """Stop the API and wait for its restart; returns the seconds until it had stopped."""
        began = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)
        stopped = time.monotonic() - began
        self.pid = next(event for event in self.events if event["event"] == "restarted" and event["name"] == "api")["pid"]
        while not _answers(self.http):
            time.sleep(0.05)
        return stopped

    def stored(self, task_id: str) -> dict[str, float]:
        """Counts of the task's points in the database."""
        own = "FROM point_chunks p JOIN jobs j ON j.id = p.job_id WHERE j.task_id = %s AND p.hidden_by IS NULL"
        with psycopg.connect(driver_url(self.database_url)) as connection:
            points, chunks = connection.execute(f"SELECT sum(cardinality(steps)), count(*) {own}", [task_id]).fetchone() or (
                0,
                0,
            )
            (last,) = connection.execute("SELECT last_event FROM tasks WHERE id = %s", [task_id]).fetchone() or (0,)
            (size,) = connection.execute("SELECT pg_total_relation_size('point_chunks')").fetchone() or (0,)
        return {"points": int(points), "chunks": chunks, "last_event": last, "table_bytes": size}


def _answers(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").is_success
    except httpx.TransportError:
        return False


async def put(load: Load, running: Running, placed: Placed, polled: list[str], seconds: float) -> dict[str, Any]:
    """Run all loads at once, then restart the API under open streams; returns the seconds and MiB used."""
    waiting, spec, memory = list(range(SUBMISSIONS)), json.dumps(running.sized(2)).encode(), []
    readers = [asyncio.ensure_future(load.follow(number, placed.task_id)) for number in range(STREAMS)]
    work = [load.poll(number, polled[number % len(polled)], seconds) for number in range(POLLERS)]
    work += [load.submit(spec, waiting) for _ in range(SUBMITTERS)]
    reporting = load.report_with_all(placed, load.bodies(placed, int(seconds / REPORT_SECONDS)))
    at_once, spent, api = asyncio.gather(reporting, *work), Spent(running.programs), family(running.pid)
    stolen = stolen_seconds()
    while not at_once.done():
        memory.append(memory_mb(api))
        await asyncio.wait([at_once], timeout=0.5)
    used = spent.seconds() | {"stolen": round(stolen_seconds() - stolen, 2)}
    in_time = {"report_seconds": at_once.result()[0], "points_in_time": load.points, "cpu": used}
    stopped = await asyncio.to_thread(running.restart)
    await load.report(placed, load.bodies(placed, 2))
    last = running.stored(placed.task_id)["last_event"]
    until = time.monotonic() + 30
    while not all(seen and seen[-1] >= last for seen in load.streams) and time.monotonic() < until:
        await asyncio.sleep(0.05)
    load.over = True
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return in_time | {"shutdown_seconds": stopped, "memory_mb": memory}


def many_tenants(running: Running, seconds: float) -> tuple[TenantLoad, int, dict[str, Any]]:
    """The load of 200 tenants; how many of their submissions were lost, and the CPU time that it took."""
    rows = ROOT / "examples" / "gsm8k" / "validation.jsonl"
    load = TenantLoad(str(running.http.base_url), callers_of(running.http, running.admin_key, rows, "base"))
    spent, stolen = Spent(running.programs | {"api": running.pid}), stolen_seconds()
    uvloop.run(load.run(seconds))
    used = spent.seconds() | {"stolen": round(stolen_seconds() - stolen, 2)}
    return load, lost(load, running.http), used


def correctness_gate(load: Load, stored: dict[str, float], tenants: TenantLoad, missing: int) -> dict[str, Any]:
    """Check the gate."""
    whole = list(range(1, int(stored["last_event"]) + 1))
    compared = {
        "points lost": load.points - stored["points"],
        "streams with a gap or a repetition": sum(seen != whole for seen in load.streams),
        "wrong answers": len(load.wrong) + len(tenants.wrong),
        "submissions of 200 tenants lost or made twice": missing,
    }
    worst = max(abs(value) for value in compared.values())
    return {
        "tolerance": 0,
        "worst_error": worst,
        "compared": compared | {"of": (load.wrong + tenants.wrong)[:5]},
        "passed": worst == 0,
    }


def measure(seconds: float, with_100m: bool, processes: int) -> None:
    with Stack(["--workers", "0", "--api-processes", str(processes)]) as stack:
        running = Running.of(stack)
        placed, polled = running.placed(), [running.task(8) for _ in range(20)]
        load = Load(str(running.http.base_url), running.key, seq=2)
        met = uvloop.run(put(load, running, placed, polled, seconds))
        print(f"{len(load.polled)} polls, {len(load.submits)} submissions, {len(load.reports)} reports", flush=True)
        stored = running.stored(placed.task_id)
        tenants, missing, used = many_tenants(running, seconds)
        print(f"{TENANTS} tenants: {len(tenants.polls)} polls, {len(tenants.submits)} submissions", flush=True)
        gate = correctness_gate(load, stored, tenants, missing)
        memory, polls = met.pop("memory_mb"), [taken for kind in load.polls.values() for taken in kind]
        early = max(memory[: max(1, len(memory) // 2)])
        figures = {
            "poll_p99_ms": quantile(polls, 0.99),
            "poll_rps": load.polls_per_second,
            "submit_p99_ms": quantile(load.submits, 0.99),
            "points_per_s": met["points_in_time"] / met["report_seconds"],
            "points_lost": load.points - stored["points"],
            "rss_growth_mb": memory[-1] - early,
            "bytes_per_point": stored["table_bytes"] / stored["points"],
            "shutdown_s": met["shutdown_seconds"],
            "poll_p99_200_tenants_ms": quantile(tenants.polls, 0.99),
            "submit_p99_200_tenants_ms": quantile(tenants.submits, 0.99),
        }
        rows: list[dict[str, Any]] = [{"of": f"polls, {kind}"} | spread(taken) for kind, taken in load.polls.items()]
        rows += [{"of": "submissions"} | spread(load.submits), {"of": "reports of 10,000 points"} | spread(load.reports)]
        beside = "from a process beside the service, on the same cores"
        rows += [{"of": "machine", "cores": os.cpu_count(), "api_processes": processes, "load": beside}]
        rows += [{"of": "memory of the API, MiB", "samples": [round(one, 1) for one in memory]}, {"of": "stored"} | stored]
        rows += [{"of": "CPU seconds while the load lasted"} | met["cpu"]]
        rows += [{"of": f"polls of {TENANTS} tenants, from when each was due"} | spread(tenants.polls)]
        rows += [{"of": f"submissions of {TENANTS} tenants under Idempotency-Keys, likewise"} | spread(tenants.submits)]
        rows += [{"of": f"long polls, beyond the {WAIT_SECONDS} s that they asked for"} | spread(tenants.long_polls)]
        rows += [{"of": f"CPU seconds while {TENANTS} tenants asked; stolen ones over all cores"} | used]
        if with_100m:
            many, answers = _hundred_million(running)
            rows += [{"of": "100 million points"} | many, *answers]
            figures |= {"query_ms_100m": answers[0]["median_ms"], "bytes_per_point_100m": many["table_bytes"] / many["points"]}
    print(json.dumps({"gate": gate, "figures": figures}, indent=1))
    print(write_result("api_load", gate, figures, rows))


def _hundred_million(running: Running) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    template = running.task(JOBS)
    assert running.http.post(f"/v1/tasks/{template}/cancel").is_success
    many = fill(running.database_url, template)
    print(f"{many['points']:,} points in {many['fill_seconds']:.0f} s", flush=True)
    return many, ask(str(running.http.base_url), running.key, running.database_url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load lasts (%(default)s)")
    parser.add_argument("--without-100m", action="store_true", help="leave the hundred million points out")
    parser.add_argument("--api-processes", type=int, default=1, help="how many processes serve the API (%(default)s)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="motet-load-") as folder:
        os.environ["MOTET_STATE_DIR"] = folder
        os.environ["MOTET_PREEMPT_FOR_SHORTER_TASKS"] = "false"  # the task that reports is long, and those submitted short
        measure(chosen.seconds, not chosen.without_100m, chosen.api_processes)


if __name__ == "__main__":
    main()
