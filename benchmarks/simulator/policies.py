"""Baseline policies: FCFS, EASY backfill, SJF, LPT, EASY-WSAP, ALTO's big-M model; and ours. Each plans one problem.

The baselines use the product's timeline; they live here because the product does not need them.
"""

from collections.abc import Callable, Sequence

from ortools.sat.python import cp_model

from service.scheduler.core.decision import Decision
from service.scheduler.core.problem import Queued, SchedulingProblem, Start
from service.scheduler.core.rules import backfill, by_rule
from service.scheduler.core.solve import BUDGET, solve
from service.scheduler.core.timeline import Timeline

Policy = Callable[[SchedulingProblem], Decision]


def fcfs(problem: SchedulingProblem) -> Decision:
    """In order of arrival; no task starts before its predecessor."""
    timeline, starts = Timeline(problem), []
    for task in problem.placeable:
        start = timeline.now(task)
        if start is None:
            break
        starts.append(timeline.put(start))
    return Decision(tuple(starts), "fcfs", 0)


def easy(problem: SchedulingProblem) -> Decision:
    """In order of arrival, with one reservation and backfill that does not delay it."""
    return Decision(backfill(problem, problem.placeable, reserved=1), "easy", 0)


def sjf(problem: SchedulingProblem) -> Decision:
    """Shortest first, any that fits, no reservation."""
    return _any_fit(problem, sorted(problem.placeable, key=lambda task: task.shortest or 0), "sjf")


def lpt(problem: SchedulingProblem) -> Decision:
    """Longest first, any that fits, no reservation."""
    return _any_fit(problem, sorted(problem.placeable, key=lambda task: -(task.shortest or 0)), "lpt")


def easy_wsap(problem: SchedulingProblem) -> Decision:
    """By ascending seconds x GPUs / weight, with one reservation and backfill that does not delay it."""
    order = sorted(problem.placeable, key=lambda task: (task.shortest or 0) * task.gpus / task.weight)
    return Decision(backfill(problem, order, reserved=1), "easy_wsap", 0)


def big_m(problem: SchedulingProblem, seconds: float = 5.0) -> Decision:
    """ALTO 7.2 as printed: GPUs x_ig, order y_ij, big-M disjunctions, makespan; for an idle fleet, ignoring nodes' borders."""
    tasks, gpus = problem.placeable, sum(node.gpus for node in problem.nodes)
    durations = [task.shortest or 0 for task in tasks]
    big = sum(durations)
    model = cp_model.CpModel()
    begins = [model.new_int_var(0, big, f"s{at}") for at in range(len(tasks))]
    on = [[model.new_bool_var(f"x{at}_{gpu}") for gpu in range(gpus)] for at in range(len(tasks))]
    span = model.new_int_var(0, big, "makespan")
    for at, task in enumerate(tasks):
        model.add(sum(on[at]) == task.gpus)
        model.add(begins[at] + durations[at] <= span)
        for later in range(at + 1, len(tasks)):
            first = model.new_bool_var(f"y{at}_{later}")
            for gpu in range(gpus):
                both = on[at][gpu] + on[later][gpu]
                model.add(begins[at] + durations[at] <= begins[later] + big * (3 - both - first))
                model.add(begins[later] + durations[later] <= begins[at] + big * (2 - both + first))
    model.minimize(span)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Decision((), "big_m", 0, solver.status_name(status))
    starts = tuple(
        Start(task.id, problem.nodes[0].id, solver.value(begin), solver.value(begin) + seconds_, task.gpus)
        for task, begin, seconds_ in zip(tasks, begins, durations, strict=True)
    )
    return Decision(starts, "big_m", round(solver.objective_value), solver.status_name(status), solver.best_objective_bound)


def rules(problem: SchedulingProblem) -> Decision:
    """The planner without its solver."""
    starts, held = by_rule(problem)
    return Decision(starts, "rules", 0, held=held)


def ours(problem: SchedulingProblem) -> Decision:
    return solve(problem, BUDGET)


POLICIES: dict[str, Policy] = {
    "fcfs": fcfs, "easy": easy, "sjf": sjf, "lpt": lpt, "easy_wsap": easy_wsap, "rules": rules, "ours": ours,
}  # fmt: skip


def _any_fit(problem: SchedulingProblem, order: Sequence[Queued], name: str) -> Decision:
    timeline, starts = Timeline(problem), []
    for task in order:
        start = timeline.now(task)
        if start is not None:
            starts.append(timeline.put(start))
    return Decision(tuple(starts), name, 0)
