"""The scheduler's figures, from the real pure modules on a fake clock: `python -m benchmarks.scheduler`.

Every plan that is counted was first judged by `simulator.check`; one bad plan and nothing is written.
`--only` picks parts, `--plot` and `--export` leave a picture and the problems of each run in a folder.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from benchmarks.simulator.check import check
from benchmarks.simulator.engine import Observer, Outcome, Setup, simulate
from benchmarks.simulator.metrics import metrics
from benchmarks.simulator.picture import draw
from benchmarks.simulator.policies import POLICIES, Policy, big_m
from benchmarks.simulator.workload import TRACES, Arrival, closed, eleven, rolling, trace
from service.scheduler.greedy import easy_wsap
from service.scheduler.problem import Node, Problem, Queued, Running, makespan
from service.scheduler.solve import Decision, solve
from service.scheduler.window import Budget

RESULT = Path(__file__).parent / "results" / "scheduler-cpu.json"
COMPARED = ("fcfs", "easy", "sjf", "lpt", "easy_wsap", "ours")
Figures = dict[str, float]
Rows = list[dict[str, Any]]


def batch_of(tasks: list[Arrival], nodes: int, seconds: Callable[[Arrival], int]) -> Problem:
    fleet = tuple(Node(f"node-{at:03}", 8) for at in range(nodes))
    return Problem(fleet, (), tuple(Queued(t.id, t.gpus, 1, (seconds(t),) * nodes) for t in tasks), closed=True)


def area_bound(problem: Problem) -> float:
    area = sum((task.shortest or 0) * task.gpus for task in problem.queued) / sum(node.gpus for node in problem.nodes)
    return max(area, max(task.shortest or 0 for task in problem.queued))


class Bench:
    """The parts, what they measured, and how many starts were judged."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.figures: Figures = {}
        self.rows: Rows = []
        self.checked = 0

    def eleven_on_eight(self) -> None:
        """Optimality is proven by the plan's own solve, or by one with twenty times its budget."""
        optimal = proven = 0
        for seed in range(10):
            problem = batch_of(eleven(seed), 1, lambda task: task.worst)
            decision = self._judged(problem, solve(problem))
            longer = decision if decision.status == "OPTIMAL" else solve(problem, Budget(polish=40.0, wall=300.0))
            peer = big_m(problem, seconds=5.0) if self.options.big_m else None
            proven += decision.status == "OPTIMAL"
            optimal += longer.status == "OPTIMAL" and longer.objective == decision.objective
            self.rows.append({
                "part": "11/8", "seed": seed, "makespan_min": decision.objective, "status": decision.status,
                "optimum": longer.objective if longer.status == "OPTIMAL" else None,
                "big_m": {"status": peer.status, "makespan_min": peer.objective or None} if peer else None,
            })  # fmt: skip
        self.figures |= {"optimal_11_8": optimal, "proven_11_8": proven}

    def gaps(self) -> None:
        for name, count, nodes, seeds in (("gap_200_128", 200, 16, 5), ("gap_1000_1024", 1000, 128, 3)):
            gaps = []
            for seed in range(seeds):
                problem = batch_of(closed(count, seed, minute=60), nodes, lambda task: task.worst)
                began = time.perf_counter()
                decision = self._judged(problem, solve(problem))
                gap = makespan(problem, decision.starts) / area_bound(problem) - 1
                gaps.append(gap)
                spent = time.perf_counter() - began
                self.rows.append({"part": name, "seed": seed, "gap": gap, "method": decision.method, "seconds": spent})
            self.figures[name] = median(gaps)

    def rolling(self) -> None:
        """64 GPUs at load 1.8; the same seeds for every policy; figures from the means over seeds."""
        means: dict[str, Figures] = {}
        for name in COMPARED:
            runs = []
            for seed in range(self.options.seeds):
                tasks = rolling(self.options.tasks, 64, 1.8, seed, bursts=self.options.bursts)
                runs.append(self._run(f"rolling-{name}-{seed}", tasks, POLICIES[name], Setup(8)))
            means[name] = {key: fmean(run[key] for run in runs) for key in runs[0]}
        ours = means["ours"]
        for rival in ("fcfs", "easy", "easy_wsap"):
            self.figures[f"wjct_vs_{rival}"] = 1 - ours["completion_weighted"] / means[rival]["completion_weighted"]
        self.figures["p99_slowdown_vs_easy_wsap"] = 1 - ours["slowdown_p99"] / means["easy_wsap"]["slowdown_p99"]
        self.figures["churn"] = ours["churn"]

    def thousand(self) -> None:
        """1,000 queued on 1,024 GPUs, all busy; wall clock and the process's own CPU time of each plan."""
        plans: list[float] = []
        rules: list[float] = []
        for seed in range(7):
            problem = busy_fleet(seed)
            for kind, act, found in (("rules", lambda p: Decision(easy_wsap(p), "greedy", 0), rules), ("plan", solve, plans)):
                wall, cpu = time.perf_counter(), time.process_time()
                decision = act(problem)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                self._judged(problem, decision)
                found.append(1000 * wall)
                self.rows.append(
                    {"part": "1000/1024", "kind": kind, "seed": seed, "wall_ms": 1000 * wall, "cpu_ms": 1000 * cpu}
                )
        self.figures |= {"replan_ms_p50_1000": median(plans), "fallback_ms_1000": median(rules)}

    def philly(self) -> None:
        """A week of Philly at 1.5 times its pace on 128 GPUs; the five largest virtual clusters, fair share and preemption."""
        tasks = trace(self.options.trace, seed=0, scale=1.5)
        size: dict[str, float] = {}
        for task in tasks:
            size[task.tenant] = size.get(task.tenant, 0) + task.gpus * task.true
        largest = sorted(size, key=lambda name: -size[name])[:5]
        setup = Setup(16, prior=0.3, fair=True, bound=3600.0, coalesce=self.options.coalesce)
        chosen = [task for task in tasks if task.tenant in largest]
        run = self._run("philly-ours", chosen, POLICIES["ours"], setup)
        self.figures |= {"jain_philly": run["jain"], "starved_seconds_philly": run["starved_max"]}

    def figure_12(self) -> None:
        """ALTO's ablation: batching in order of arrival; early exit; the scheduler; both. Makespans over ten seeds."""
        spans: dict[str, list[float]] = {"b": [], "b_ee": [], "b_s": [], "b_s_ee": []}
        for seed in range(10):
            tasks = eleven(seed)
            Random(seed).shuffle(tasks)
            for name, early, policy in (
                ("b", False, "fcfs"),
                ("b_ee", True, "fcfs"),
                ("b_s", False, "ours"),
                ("b_s_ee", True, "ours"),
            ):
                problem = batch_of(tasks, 1, (lambda task: task.true) if early else (lambda task: task.worst))
                if policy == "ours":
                    spans[name].append(self._judged(problem, solve(problem)).objective)
                else:
                    seen = [Arrival(t.id, 0, t.gpus, t.worst, t.true if early else t.worst) for t in tasks]
                    spans[name].append(self._run(f"fig12-{name}-{seed}", seen, POLICIES[policy], Setup(1))["makespan"])
        self.rows += [{"part": "figure 12", "system": name, "makespan_min": values} for name, values in spans.items()]
        self.figures["fig12_x"] = fmean(spans["b"]) / fmean(spans["b_s_ee"])

    def _judged(self, problem: Problem, decision: Decision) -> Decision:
        self.checked += check(problem, decision.starts)
        return decision

    def _run(self, name: str, tasks: list[Arrival], policy: Policy, setup: Setup) -> Figures:
        *_, outcome = progress(name, len(tasks), simulate(tasks, policy, setup, self._export(name)))
        self.checked += outcome.checked
        if self.options.plot:
            draw(outcome, self.options.plot / f"{name}.svg", name)
        found = metrics(outcome)
        self.rows.append({"part": name, **found, "methods": outcome.methods})
        return found

    def _export(self, name: str) -> Observer | None:
        if not self.options.export:
            return None
        lines = (self.options.export / f"{name}.jsonl").open("w")

        def write(at: int, problem: Problem, decision: Decision) -> None:
            starts = [[s.task, s.node, s.start, s.end, s.gpus] for s in decision.starts]
            lines.write(
                json.dumps({"at": at, "problem": problem.to_json(), "method": decision.method, "starts": starts}) + "\n"
            )
            lines.flush()

        return write


def busy_fleet(seed: int) -> Problem:
    """128 nodes of 8 GPUs that are busy but for splinters, and 1,000 waiting tasks, each with its own duration."""
    draw_ = Random(seed)
    nodes = tuple(Node(f"node-{at:03}", 8) for at in range(128))
    running: list[Running] = []
    for node in nodes:
        free = 8
        while free > (draw_.random() < 0.2):
            gpus = min(free, draw_.choices((1, 2, 4, 8), (0.5, 0.2, 0.2, 0.1))[0])
            running.append(Running(f"r{len(running)}", node.id, gpus, draw_.randint(1, 40_000)))
            free -= gpus
    queued = tuple(
        Queued(task.id, task.gpus, draw_.choice((1, 2, 4)) * 100, (task.true,) * 128) for task in rolling(1000, 1024, 1.8, seed)
    )
    return Problem(nodes, tuple(running), queued)


def progress(name: str, total: int, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Pass them on, with a line on a terminal that says how far the run is."""
    for outcome in outcomes:
        if sys.stderr.isatty() and outcome.plans % 10 == 0:
            done = sum(ran.ended is not None for ran in outcome.ran)
            bar = "#" * (30 * done // total)
            print(f"\r{name:24} [{bar:30}] {done}/{total} ended, {outcome.plans} plans", end="", file=sys.stderr)
        yield outcome
    if sys.stderr.isatty():
        print(file=sys.stderr)


PARTS: dict[str, Callable[[Bench], None]] = {
    "eleven": Bench.eleven_on_eight, "gaps": Bench.gaps, "rolling": Bench.rolling, "thousand": Bench.thousand,
    "philly": Bench.philly, "figure12": Bench.figure_12,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure; others keep their figures"
    )
    parser.add_argument("--seeds", type=int, default=4, help="of the rolling part")
    parser.add_argument("--tasks", type=int, default=300, help="of the rolling part")
    parser.add_argument("--bursts", action="store_true", help="the rolling part's arrivals in bursts of 20")
    parser.add_argument("--big-m", action="store_true", help="also ALTO's own model on 11/8, 5 s each")
    parser.add_argument("--trace", type=Path, default=TRACES / "philly_week.csv.gz", help="submit_s, duration_s, gpus, tenant")
    parser.add_argument("--coalesce", type=int, default=60, help="seconds of simulated time between plans on the trace")
    parser.add_argument("--plot", type=Path, help="folder for a picture of each run")
    parser.add_argument("--export", type=Path, help="folder for every problem and plan, as JSON lines")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    for folder in (options.plot, options.export, options.out.parent):
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    for name in options.only:
        PARTS[name](bench)
        print(name, {key: round(value, 4) for key, value in bench.figures.items()}, flush=True)
    before = json.loads(options.out.read_text()) if options.out.exists() else {"figures": {}, "rows": [], "parts": {}}
    measured = {row["part"] for row in bench.rows}
    gate = {"tolerance": 0, "worst_error": 0, "compared": bench.checked, "passed": True}
    now = {
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.scheduler " + " ".join(sys.argv[1:]),
    }
    said = {
        "device": f"{platform.machine()} CPU, {len_cpus()} cores",
        "versions": {"python": platform.python_version(), "ortools": version("ortools"), "numpy": version("numpy")},
        **now,
        "gate": gate,
        "parts": before["parts"] | dict.fromkeys(options.only, now | {"compared": bench.checked}),
        "figures": before["figures"] | bench.figures,
        "rows": [row for row in before["rows"] if row["part"] not in measured] + bench.rows,
    }
    options.out.write_text(json.dumps(said, indent=1) + "\n")


def len_cpus() -> int:
    return int(subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    main()
