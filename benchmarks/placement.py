"""Latency from a task's arrival to its placement, through the real service: `python -m benchmarks.placement`.

The API, the queue worker, the reconciler, Postgres and Valkey are real processes; the nodes are fake ones (fake_node.py) that
speak the real fleet API. Times come from the database's rows and clock. Two runs: one whose arrivals find free devices, and one
that offers more work than the devices hold, so that a queue grows and CP-SAT takes part in the plans. The gate, for both: every
task succeeded on one placement, no device held two tasks at once, and no device stood idle for longer than one replan while a
task that fits it waited.
"""

import argparse
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import sqlalchemy as sa

from benchmarks.fake_node import FakeNode
from benchmarks.process_usage import stolen_seconds
from benchmarks.result_file import write_result
from tests.walk.running_stack import RunningStack, running_stack

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
    solver_statuses: dict[str, int] = field(default_factory=dict)  # plans by CP-SAT's status, "not asked" among them
    stolen: float = 0.0  # seconds that the hypervisor gave to others meanwhile, over all cores


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
        with running_stack(state, workers=0) as motet:
            tokens = {name: motet.join_token(name) for name in (f"fake-{at}" for at in range(nodes))}
            fleet = [FakeNode(motet.url, motet.redis_url, token, name, slots, seconds, taken) for name, token in tokens.items()]
            file, stolen = motet.upload(_ROWS), stolen_seconds()
            at = time.monotonic()
            for _ in range(tasks):
                at += draw.expovariate(rate)
                time.sleep(max(0.0, at - time.monotonic()))
                task = motet.submit(dataset={"file_id": file}, **_SPEC)
                posted[task] = time.monotonic()
            for task in posted:
                motet.ended(task)
            stolen = stolen_seconds() - stolen
            for node in fleet:
                node.close()
            run = _read(motet, [heard[task] - posted[task] for task in posted], nodes * slots)
            return replace(run, stolen=round(stolen, 2))
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _read(motet: RunningStack, heard: list[float], devices: int) -> Run:
    engine = sa.create_engine(motet.database_url)
    with engine.connect() as rows:
        placed = rows.execute(sa.text(
            "SELECT t.id, t.created_at, t.queued_at, p.created_at, p.ended_at, p.node_id, p.device_indexes "
            "FROM tasks t JOIN placements p ON p.task_id = t.id ORDER BY t.created_at"
        )).all()  # fmt: skip
        statuses = {row[0]: row[1] for row in rows.execute(sa.text("SELECT status, count(*) FROM tasks GROUP BY status"))}
        plans = rows.execute(sa.text("SELECT latency_seconds, seconds, solver_status FROM plans")).all()
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
        dict(Counter(row[2] or "not asked" for row in plans)),
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


def gate_of_runs(runs: Mapping[str, Run], tasks: int) -> dict[str, Any]:
    """The gate of all runs, with the errors of the run that is closest to failing, or has failed."""
    gates = {name: gate(run, tasks) for name, run in runs.items()}
    worst = min(gates.values(), key=lambda one: (one["passed"], one["tolerance"] - one["worst_error"]))
    return worst | {"compared": sum(one["compared"] for one in gates.values()), "runs": gates}


def figures(run: Run) -> dict[str, float]:
    waits = sorted(1000 * (one.placed - one.arrived) for one in run.placed)
    planned = sorted(1000 * (one.placed - one.queued) for one in run.placed)
    replans, solving = sorted(run.replans), sorted(run.solving)
    return {
        "arrival_to_placement_ms_p50": median(waits),
        "arrival_to_placement_ms_p99": waits[int(0.99 * (len(waits) - 1))],
        "queued_to_placement_ms_p50": median(planned),
        "arrival_to_node_ms_p50": 1000 * median(run.heard),
        "replan_ms_p50": 1000 * median(replans),
        "replan_ms_p99": 1000 * replans[int(0.99 * (len(replans) - 1))],
        "replan_ms_max": 1000 * replans[-1],
        "solve_ms_p50": 1000 * median(solving),
        "solve_ms_p99": 1000 * solving[int(0.99 * (len(solving) - 1))],
        "idle_while_waiting_ms_max": 1000 * max(run.idle),
        "plans": len(replans),
        "plans_with_cp_sat": len(replans) - run.solver_statuses.get("not asked", 0),
        "stolen_s": run.stolen,
    }


def rows_of(name: str, run: Run) -> list[dict[str, Any]]:
    """One row for the run's plans, and one for each task."""
    moments = ("arrived", "queued", "placed", "ended")
    tasks = [{"run": name, "task": at, **{one: getattr(task, one) for one in moments}} for at, task in enumerate(run.placed)]
    return [{"run": name, "plans_by_solver_status": run.solver_statuses}, *tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="of each run (%(default)s)")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--load", type=float, default=0.6, help="work offered, as a fraction of the devices' (%(default)s)")
    parser.add_argument("--contended-load", type=float, default=1.5, help="the same, of the second run (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each task (%(default)s)")
    options = parser.parse_args()
    devices = options.nodes * options.slots
    runs = {}
    for name, load in (("free", options.load), ("contended", options.contended_load)):
        rate = load * devices / options.seconds
        runs[name] = measure(options.tasks, options.nodes, options.slots, rate, options.seconds)
    found = figures(runs["free"]) | {f"contended_{name}": value for name, value in figures(runs["contended"]).items()}
    for name, value in found.items():
        print(f"{name:42} {value:10.1f}")
    rows = [row for name, run in runs.items() for row in rows_of(name, run)]
    print(write_result("placement", gate_of_runs(runs, options.tasks), found, rows))


if __name__ == "__main__":
    main()
