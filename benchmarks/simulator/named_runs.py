"""Simulated runs by name: workload, fleet and policy; each gives a row, and on request a plot and every problem it planned.

Knows no figures. Runs are independent, so several may run in parallel; their plan times then mean nothing.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.engine import Observer, simulate
from benchmarks.simulator.policies import POLICIES
from benchmarks.simulator.run_metrics import metrics
from benchmarks.simulator.run_plot import draw
from benchmarks.simulator.run_record import Outcome, Setup
from service.scheduler.core.decision import Decision
from service.scheduler.core.problem import SchedulingProblem
from service.scheduler.core.problem_json import problem_to_json


@dataclass(frozen=True)
class Run:
    """`name` is the row's; `plot` and `export` are output folders."""

    name: str
    tasks: tuple[Arrival, ...]
    policy: str
    setup: Setup
    plot: Path | None = None
    export: Path | None = None


@dataclass(frozen=True)
class Ended:
    """A run's figures, its row, and the number of checked starts."""

    figures: dict[str, float]
    row: dict[str, Any]
    checked: int


def run_all(runs: Iterable[Run], workers: int) -> list[Ended]:
    """Results in order; with several workers in parallel, each printed when done."""
    runs = list(runs)
    if workers <= 1:
        return [run_one(run) for run in runs]
    found = []
    with ProcessPoolExecutor(workers) as pool:
        for ended in pool.map(run_one, runs):
            found.append(ended)
            print(f"{ended.row['part']} ended, {len(found)}/{len(runs)}", file=sys.stderr, flush=True)
    return found


def run_one(run: Run) -> Ended:
    """Raises BadPlan if a plan breaks a rule, ValueError if a task never ended."""
    *_, outcome = _progress(run.name, len(run.tasks), simulate(run.tasks, POLICIES[run.policy], run.setup, _observer(run)))
    if run.plot:
        draw(outcome, run.plot / f"{run.name}.svg", run.name)
    found = metrics(outcome)
    return Ended(found, {"part": run.name, **found, "methods": outcome.methods}, outcome.checked)


def _observer(run: Run) -> Observer | None:
    """Writes every problem with its plan: `problem_from_json` makes the same problem, and `solve` then the same plan."""
    if not run.export:
        return None
    lines = (run.export / f"{run.name}.jsonl").open("w")

    def write(at: int, problem: SchedulingProblem, decision: Decision) -> None:
        starts = [[s.task, s.node, s.start, s.end, s.gpus] for s in decision.starts]
        said = {"at": at, "problem": problem_to_json(problem), "method": decision.method, "starts": starts}
        lines.write(json.dumps(said) + "\n")
        lines.flush()

    return write


def _progress(name: str, total: int, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Pass the outcomes on, with a progress line on a terminal."""
    for outcome in outcomes:
        if sys.stderr.isatty() and outcome.plans % 10 == 0:
            done = sum(ran.ended is not None for ran in outcome.ran)
            bar = "#" * (30 * done // total)
            print(f"\r{name:24} [{bar:30}] {done}/{total} ended, {outcome.plans} plans", end="", file=sys.stderr)
        yield outcome
    if sys.stderr.isatty():
        print(file=sys.stderr)
