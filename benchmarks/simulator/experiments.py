"""The experiments of the scheduler's benchmark: problems and runs in, figures and rows out.

`check` passes every plan that counts. Knows no files but the traces.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import fmean, median
from typing import Any

from benchmarks.simulator.arrivals import Arrival, closed, eleven, rolling
from benchmarks.simulator.calibration import PARTS, calibrate
from benchmarks.simulator.named_runs import Ended, Run, run_all
from benchmarks.simulator.plan_checker import check
from benchmarks.simulator.policies import big_m
from benchmarks.simulator.run_record import LEAVE_SECONDS, PREEMPTING, RESUME_SECONDS, Setup
from service.scheduler.core.decision import Decision, SearchBudget
from service.scheduler.core.plan_objective import makespan
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.core.problem import PlanNode, Preemptible, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.rules import backfill
from service.scheduler.core.solve import solve
from service.scheduler.estimate.task_duration import INSIDE

COMPARED = ("fcfs", "easy", "sjf", "lpt", "easy_wsap", "rules", "ours")
Figures = dict[str, float]
Rows = list[dict[str, Any]]


class Experiments:
    """The experiments, their results, and the number of checked starts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.figures: Figures = {}
        self.rows: Rows = []
        self.checked = 0

    def eleven(self) -> None:
        """ALTO's eleven tasks. Optimality is proven by the plan's own solve, or by one with twenty times its budget."""
        optimal = proven = 0
        for seed in range(10):
            problem = batch_of(eleven(seed), 1, lambda task: task.worst)
            decision = self._checked(problem, solve(problem))
            longer = decision if decision.status == "OPTIMAL" else solve(problem, SearchBudget(polish=40.0, wall=300.0))
            peer = big_m(problem, seconds=2.0)
            proven += decision.status == "OPTIMAL"
            optimal += longer.status == "OPTIMAL" and longer.objective == decision.objective
            self.rows.append({
                "part": "11/8", "seed": seed, "makespan_min": decision.objective, "status": decision.status,
                "optimum": longer.objective if longer.status == "OPTIMAL" else None,
                "big_m": {"status": peer.status, "makespan_min": peer.objective or None},
            })  # fmt: skip
        self.figures |= {"optimal_11_8": optimal, "proven_11_8": proven}

    def gaps(self) -> None:
        for name, count, nodes, seeds in (("gap_200_128", 200, 16, 5), ("gap_1000_1024", 1000, 128, 3)):
            gaps = []
            for seed in range(seeds):
                problem = batch_of(closed(count, seed, minute=60), nodes, lambda task: task.worst)
                decision = self._checked(problem, solve(problem))
                gaps.append(makespan(problem, decision.starts) / area_bound(problem) - 1)
                self.rows.append({"part": name, "seed": seed, "gap": gaps[-1], "method": decision.method})
            self.figures[name] = median(gaps)

    def rolling(self) -> None:
        """64 GPUs at load 1.8; the same seeds for every policy; figures from the means over seeds."""
        o = self.options
        runs = {
            (name, seed): Run(
                f"rolling-{name}-{seed}",
                tuple(rolling(o.tasks, 64, 1.8, seed, bursts=o.bursts)), name,
                Setup(8, leave=LEAVE_SECONDS if name in PREEMPTING else None), o.plot, o.export,
            )
            for seed in o.seeds for name in COMPARED
        }  # fmt: skip
        found = dict(zip(runs, self._run(list(runs.values())), strict=True))
        means = {
            name: {key: fmean(found[name, seed].figures[key] for seed in o.seeds) for key in found[name, o.seeds[0]].figures}
            for name in COMPARED
        }
        ours = means["ours"]
        for rival in ("fcfs", "easy", "easy_wsap"):
            self.figures[f"wjct_vs_{rival}"] = 1 - ours["completion_weighted"] / means[rival]["completion_weighted"]
        self.figures["p99_vs_easy_wsap"] = 1 - ours["slowdown_p99"] / means["easy_wsap"]["slowdown_p99"]
        self.figures["churn"] = ours["churn"]

    def widths(self) -> None:
        """The same load, with half of the tasks allowed to spread over a node's spare GPUs, and with none: how much sooner all
        tasks complete by weight, and the tasks that may not spread. Two seeds."""
        o = self.options
        runs = {
            (heeded, seed): Run(
                f"widths-{'half' if heeded else 'none'}-{seed}",
                tuple(replace(task, max_gpus=8) if at % 2 else task for at, task in enumerate(rolling(o.tasks, 64, 1.8, seed))),
                "ours", Setup(8, widths=heeded, leave=LEAVE_SECONDS), o.plot, o.export,
            )
            for seed in o.seeds[:2] for heeded in (False, True)
        }  # fmt: skip
        found = dict(zip(runs, self._run(list(runs.values())), strict=True))
        for figure, key in (("wjct_widths", "completion_weighted"), ("wjct_widths_fixed", "completion_weighted_fixed")):
            none, half = (fmean(found[heeded, seed].figures[key] for seed in o.seeds[:2]) for heeded in (False, True))
            self.figures[figure] = 1 - half / none

    def timing(self) -> None:
        """1,000 queued on 1,024 busy GPUs; CPU time and wall clock of each plan with its preemptions, after one warmup. A plan
        is one thread: on a shared machine its CPU time is what the plan costs, the wall clock counts the neighbours too."""
        plans: list[tuple[float, float]] = []
        rules: list[tuple[float, float]] = []
        solve(busy_fleet(99))
        for seed in range(15):
            problem = problem_to_json(busy_fleet(seed))
            for kind, act, found in (("rules", lambda p: Decision(backfill(p), "greedy", 0), rules), ("plan", _planned, plans)):
                fresh = problem_from_json(problem)  # without cached derived values
                wall, cpu = time.perf_counter(), time.process_time()
                decision = act(fresh)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                self._checked(fresh, decision)
                found.append((1000 * cpu, 1000 * wall))
                self.rows.append(
                    {"part": "1000/1024", "kind": kind, "seed": seed, "wall_ms": 1000 * wall, "cpu_ms": 1000 * cpu}
                )
        for name, found in (("replan_1000", plans), ("fallback_1000", rules)):
            self.figures[f"{name}_ms"] = median(cpu for cpu, _ in found)
            self.figures[f"{name}_wall_ms"] = median(wall for _, wall in found)

    def figure_12(self) -> None:
        """ALTO's ablation: batching in arrival order; early exit; the scheduler; both. Makespans over ten seeds."""
        spans: dict[str, list[float]] = {"b": [], "b_ee": [], "b_s": [], "b_s_ee": []}
        for seed in range(10):
            tasks = eleven(seed)
            Random(seed).shuffle(tasks)
            for early in (False, True):
                problem = batch_of(tasks, 1, (lambda task: task.true) if early else (lambda task: task.worst))
                ee = "_ee" if early else ""
                spans[f"b_s{ee}"].append(self._checked(problem, solve(problem)).objective)
                seen = tuple(Arrival(t.id, 0, t.gpus, t.worst, t.true if early else t.worst) for t in tasks)
                (ended,) = self._run([Run(f"fig12-b{ee}-{seed}", seen, "fcfs", Setup(1))])
                spans[f"b{ee}"].append(ended.figures["makespan"])
        self.rows += [{"part": "figure 12", "system": name, "makespan_min": values} for name, values in spans.items()]
        self.figures["fig12_x"] = fmean(spans["b"]) / fmean(spans["b_s_ee"])

    def eta(self) -> None:
        """How often the true end lay within the predicted interval, at the start of tasks and while they ran."""
        seen = [foretold for seed in range(4) for foretold in calibrate(60, seed)]
        for part in PARTS:
            at = [f for f in seen if f.part == part]
            self.rows.append({
                "part": "eta", "of_the_run": part, "stated": INSIDE, "inside": fmean(f.inside for f in at),
                "sooner": fmean(f.true < f.said.low for f in at), "later": fmean(f.true > f.said.high for f in at),
                "said_over_true_median": median(f.said.seconds / f.true for f in at), "tasks": len(at),
            })  # fmt: skip
        self.figures["eta_interval_coverage"] = fmean(f.inside for f in seen)

    def _checked(self, problem: SchedulingProblem, decision: Decision) -> Decision:
        self.checked += check(problem, decision.starts)
        return decision

    def _run(self, runs: list[Run]) -> list[Ended]:
        found = run_all(runs, self.options.workers if len(runs) > 1 else 1)
        self.checked += sum(ended.checked for ended in found)
        self.rows += [ended.row for ended in found]
        return found


def _planned(problem: SchedulingProblem) -> Decision:
    decision = solve(problem)
    return replace(decision, preemptions=shorter_first(problem, decision))


def batch_of(tasks: list[Arrival], nodes: int, seconds: Callable[[Arrival], int]) -> SchedulingProblem:
    fleet = tuple(PlanNode(f"node-{at:03}", 8) for at in range(nodes))
    return SchedulingProblem(fleet, (), tuple(Queued(t.id, t.gpus, 1, (seconds(t),) * nodes) for t in tasks), closed=True)


def area_bound(problem: SchedulingProblem) -> float:
    area = sum((task.shortest or 0) * task.gpus for task in problem.queued) / sum(node.gpus for node in problem.nodes)
    return max(area, max(task.shortest or 0 for task in problem.queued))


def busy_fleet(seed: int) -> SchedulingProblem:
    """128 nodes of 8 GPUs, busy except for fragments, and 1,000 waiting tasks, each with its own duration."""
    draw_ = Random(seed)
    nodes = tuple(PlanNode(f"node-{at:03}", 8) for at in range(128))
    running: list[RunningExecutor] = []
    for node in nodes:
        free = 8
        while free > (draw_.random() < 0.2):
            gpus = min(free, draw_.choices((1, 2, 4, 8), (0.5, 0.2, 0.2, 0.1))[0])
            left, ran = draw_.randint(1, 40_000), draw_.randint(1, 40_000)
            cost = Preemptible(draw_.choice((1, 2, 4)) * 100, ran, ran, RESUME_SECONDS)
            running.append(RunningExecutor(f"r{len(running)}", node.id, gpus, left, preemptible=cost))
            free -= gpus
    queued = tuple(
        Queued(task.id, task.gpus, weight, (task.true,) * 128, preempts=weight)
        for task in rolling(1000, 1024, 1.8, seed)
        for weight in (draw_.choice((1, 2, 4)) * 100,)
    )
    return SchedulingProblem(nodes, tuple(running), queued, leave=LEAVE_SECONDS)
