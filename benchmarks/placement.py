"""Latency from a task's arrival to its placement, through the real service: `python -m benchmarks.placement`.

The API, the queue worker, the reconciler, Postgres and Valkey are real processes; the nodes are fake ones (fake_node.py) that
speak the real fleet API. Times come from the database's rows and clock. The gate: every task succeeded on one placement, no
device held two tasks at once, and no device stood idle for longer than one replan while a task that fits it waited.
"""

import argparse
import random
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from benchmarks.fake_node import FakeNode
from benchmarks.result_file import write_result
from tests.walk.house import House, house

_ROWS = [{"prompt": f"{at} + 1?", "completion": str(at + 1)} for at in range(20)]
_SPEC = {
    "search_space": {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]},
    "training": {"epochs": 1, "max_seq_len": 64},
    "early_exit": {"policy": "none"},
}


@dataclass(frozen=True)
class Placed:
    """One task from its database rows; seconds since the first arrival."""

    task: str
    arrived: float
    queued: float
    placed: float
    ended: float
    device: str


@dataclass(frozen=True)
class Run:
    """A run's results from the database. `replans`: seconds from the oldest request that a plan answers until it was
    written."""

    placed: list[Placed]
    replans: list[float]
    solving: list[float]
    heard: list[float]  # from the POST's answer until the node received the task, by the client's clock
    statuses: dict[str, int]
    overfull: int  # devices that held two placements at once
    idle: list[float]  # per task: how long a device stood idle while it waited


def measure(tasks: int, nodes: int, slots: int, rate: float, seconds: float, seed: int = 0) -> Run:
    """`tasks` Poisson arrivals, `rate` per second, each of `seconds` on one of `nodes` x `slots` devices."""
    draw, posted, heard = random.Random(seed), {}, {}
    state = Path(tempfile.mkdtemp(prefix="motet-placement-"))
    lock = threading.Condition()

    def taken(task: str) -> None:
        with lock:
            heard[task] = time.monotonic()
            lock.notify()

    try:
        with house(state, workers=0) as motet:
            tokens = {name: motet.join_token(name) for name in (f"fake-{at}" for at in range(nodes))}
            fleet = [FakeNode(motet.url, motet.redis_url, token, name, slots, seconds, taken) for name, token in tokens.items()]
            file = motet.upload(_ROWS)
            at = time.monotonic()
            for _ in range(tasks):
                at += draw.expovariate(rate)
                time.sleep(max(0.0, at - time.monotonic()))
                task = motet.submit(dataset={"file_id": file}, **_SPEC)
                posted[task] = time.monotonic()
            for task in posted:
                motet.ended(task)
            for node in fleet:
                node.close()
            return _read(motet, [heard[task] - posted[task] for task in posted], nodes * slots)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _read(motet: House, heard: list[float], devices: int) -> Run:
    engine = sa.create_engine(motet.database_url)
    with engine.connect() as rows:
        placed = rows.execute(sa.text(
            "SELECT t.id, t.created_at, t.queued_at, p.created_at, p.ended_at, p.node_id, p.device_indexes "
            "FROM tasks t JOIN placements p ON p.task_id = t.id ORDER BY t.created_at"
        )).all()  # fmt: skip
        statuses = {row[0]: row[1] for row in rows.execute(sa.text("SELECT status, count(*) FROM tasks GROUP BY status"))}
        plans = rows.execute(sa.text("SELECT latency_seconds, seconds FROM plans")).all()
    engine.dispose()
    first = placed[0][1]
    found = [
        Placed(id, *((moment - first).total_seconds() for moment in moments), f"{node}/{indexes[0]}")
        for id, *moments, node, indexes in placed
    ]
    return Run(
        found,
        [row[0] for row in plans],
        [row[1] for row in plans],
        heard,
        statuses,
        _overfull(found),
        [idle_while(one, found, devices) for one in found],
    )


def _overfull(placed: list[Placed]) -> int:
    by_device: dict[str, list[Placed]] = {}
    for one in sorted(placed, key=lambda one: one.placed):
        by_device.setdefault(one.device, []).append(one)
    return sum(after.placed < before.ended for held in by_device.values() for before, after in pairwise(held))


def idle_while(task: Placed, placed: list[Placed], devices: int) -> float:
    """The longest time in seconds that one device stood idle while the task was queued."""
    used = {one.device for one in placed}
    longest = task.placed - task.queued if len(used) < devices else 0.0
    for device in used:
        held = sorted((one.placed, one.ended) for one in placed if one.device == device)
        edges = [float("-inf"), *chain.from_iterable(held), float("inf")]
        for ended, taken in zip(edges[::2], edges[1::2], strict=True):
            longest = max(longest, min(taken, task.placed) - max(ended, task.queued))
    return longest


def gate(run: Run, tasks: int) -> dict[str, Any]:
    """{tolerance, worst_error, compared, passed}: the error is the excess of the longest idle wait over the longest replan."""
    whole = run.statuses == {"succeeded": tasks} and len(run.placed) == tasks and not run.overfull
    longest, bound = max(run.idle), max(run.replans)
    return {
        "tolerance": bound,
        "worst_error": longest,
        "compared": len(run.placed),
        "statuses": run.statuses,
        "passed": whole and longest <= bound,
    }


def figures(run: Run) -> dict[str, float]:
    waits = sorted(1000 * (one.placed - one.arrived) for one in run.placed)
    planned = sorted(1000 * (one.placed - one.queued) for one in run.placed)
    return {
        "arrival_to_placement_ms_p50": median(waits),
        "arrival_to_placement_ms_p99": waits[int(0.99 * (len(waits) - 1))],
        "queued_to_placement_ms_p50": median(planned),
        "arrival_to_node_ms_p50": 1000 * median(run.heard),
        "replan_ms_p50": 1000 * median(run.replans),
        "replan_ms_max": 1000 * max(run.replans),
        "solve_ms_p50": 1000 * median(run.solving),
        "idle_while_waiting_ms_max": 1000 * max(run.idle),
        "plans": len(run.replans),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--rate", type=float, default=4.0, help="arrivals a second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each task (%(default)s)")
    options = parser.parse_args()
    run = measure(options.tasks, options.nodes, options.slots, options.rate, options.seconds)
    found = figures(run)
    for name, value in found.items():
        print(f"{name:32} {value:10.1f}")
    rows = [{"task": at, **{name: getattr(one, name) for name in ("arrived", "queued", "placed", "ended")}}
            for at, one in enumerate(run.placed)]  # fmt: skip
    print(write_result("placement", gate(run, options.tasks), found, rows))


if __name__ == "__main__":
    main()
