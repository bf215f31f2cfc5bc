"""Plans by rule and by solver, over generated problems: what must hold for every one of them, checked from first principles."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.core.cp_sat import search
from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.plan_objective import objective
from service.scheduler.core.problem import PlanNode, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.rules import backfill, ranked
from service.scheduler.core.solve import solve


@st.composite
def problems(draw, most_tasks: int = 7) -> SchedulingProblem:
    """Up to three nodes, some of them busy, and a queue; small numbers make ties and tight fits likely."""
    nodes = tuple(PlanNode(f"n{at}", draw(st.sampled_from([1, 2, 4, 8]))) for at in range(draw(st.integers(1, 3))))
    running = []
    for node in nodes:
        free = node.gpus
        while free and draw(st.booleans()):
            gpus = draw(st.integers(1, free))
            free -= gpus
            running.append(RunningExecutor(f"r{len(running)}", node.id, gpus, draw(st.integers(1, 60))))
    queued = []
    for at in range(draw(st.integers(0, most_tasks))):
        gpus = draw(st.sampled_from([1, 1, 2, 4, 8]))
        alike = draw(st.integers(1, 40))
        seconds = tuple(
            (alike if draw(st.booleans()) else draw(st.integers(1, 40))) if node.gpus >= gpus else None for node in nodes
        )
        planned = draw(st.none() | st.sampled_from([node.id for node in nodes]))
        queued.append(Queued(f"q{at}", gpus, draw(st.integers(1, 500)), seconds, planned))
    return SchedulingProblem(nodes, tuple(running), tuple(queued))


def check(problem: SchedulingProblem, starts) -> None:
    """Every placeable task once, on one node, for its duration there, and never more GPUs at once than the node has."""
    tasks = {task.id: task for task in problem.queued}
    places = [node.id for node in problem.nodes]
    assert sorted(start.task for start in starts) == sorted(task.id for task in problem.placeable)
    held = [(run.node, 0, run.remaining, run.gpus) for run in problem.running]
    for start in starts:
        task = tasks[start.task]
        assert start.end - start.start == task.seconds[places.index(start.node)]
        assert start.start >= 0
        held.append((start.node, start.start, start.end, task.gpus))
    for node, moment in itertools.product(problem.nodes, {begin for _, begin, _, _ in held}):
        assert sum(gpus for at, begin, end, gpus in held if at == node.id and begin <= moment < end) <= node.gpus


@settings(max_examples=60, deadline=None)
@given(problems())
def test_plans_hold_are_deterministic_and_never_worse_than_the_rules(problem):
    by_rule = backfill(problem)
    check(problem, by_rule)
    decision = solve(problem)
    check(problem, decision.starts)
    assert solve(problem_from_json(problem_to_json(problem))) == decision
    if decision.method == "cpsat":
        assert objective(problem, decision.starts) <= objective(problem, by_rule)
        assert decision.bound <= decision.objective
    if decision.method == "start":
        assert all(start.start == 0 for start in decision.starts)


@settings(max_examples=20, deadline=None)
@given(problems(most_tasks=20))
def test_a_queue_longer_than_the_window_is_planned_whole(problem):
    check(problem, solve(problem).starts)


def brute_force(problem: SchedulingProblem) -> int:
    """The least objective, by trying every order and node: each task as early as those before it allow."""
    best = None
    for order in itertools.permutations(problem.placeable):
        for nodes in itertools.product(problem.nodes, repeat=len(order)):
            held = [(run.node, 0, run.remaining, run.gpus) for run in problem.running]
            cost = 0
            for task, node in zip(order, nodes, strict=True):
                seconds = task.seconds[problem.nodes.index(node)]
                if seconds is None:
                    break
                moments = sorted({0} | {end for at, _, end, _ in held if at == node.id})
                begin = next(
                    moment
                    for moment in moments
                    if all(
                        sum(g for at, b, e, g in held if at == node.id and b <= t < e) + task.gpus <= node.gpus
                        for t in [moment] + [b for at, b, _, _ in held if at == node.id and moment < b < moment + seconds]
                    )
                )
                held.append((node.id, begin, begin + seconds, task.gpus))
                cost += task.weight * (begin + seconds) + (problem.churn if task.planned not in (None, node.id) else 0)
            else:
                best = cost if best is None else min(best, cost)
    assert best is not None
    return best


@settings(max_examples=25, deadline=None)
@given(problems(most_tasks=4))
def test_what_the_solver_calls_optimal_is_what_brute_force_finds(problem):
    decision = solve(problem)
    if decision.method == "cpsat" and decision.status == "OPTIMAL":
        assert decision.objective == brute_force(problem)


def test_a_wide_task_is_not_starved_by_narrow_ones():
    """Narrow tasks may use the hole before its reservation, and may not push it back."""
    wide = Queued("wide", 2, 1000, (100,))
    narrow = [Queued(f"narrow{at}", 1, 10, (seconds,)) for at, seconds in enumerate((40, 60))]
    problem = SchedulingProblem((PlanNode("n", 2),), (RunningExecutor("r", "n", 1, 50),), (wide, *narrow))
    starts = {start.task: start for start in backfill(problem)}
    assert starts["narrow0"].start == 0  # ends at 40, before the reservation
    assert starts["wide"].start == 50
    assert starts["narrow1"].start == 150  # would have ended at 60


def test_each_that_waits_in_front_keeps_its_start():
    """With one reservation the last would take the second node at once, and push back who waits for the whole of it."""
    nodes = (PlanNode("n0", 2), PlanNode("n1", 2))
    running = (RunningExecutor("r0", "n0", 2, 50), RunningExecutor("r1", "n1", 1, 60))
    queued = tuple(
        Queued(name, gpus, weight, (seconds,) * 2)
        for name, gpus, weight, seconds in (("a", 2, 1000, 100), ("b", 2, 500, 100), ("c", 1, 1, 200))
    )
    starts = {start.task: start for start in backfill(SchedulingProblem(nodes, running, queued))}
    assert (starts["a"].start, starts["b"].start, starts["c"].start) == (50, 60, 150)
    one = {start.task: start for start in backfill(SchedulingProblem(nodes, running, queued), reserved=1)}
    assert (one["c"].start, one["b"].start) == (0, 150)


def test_a_wide_task_weighs_less_than_its_width_in_the_order():
    """Four times as wide counts as twice as long: its GPUs must lie on one node, a narrow one takes what is left."""
    nodes = (PlanNode("n", 4),)
    queued = tuple(Queued(name, gpus, 1, (seconds,)) for name, gpus, seconds in (("narrow", 1, 250), ("wide", 4, 100)))
    assert [task.id for task in ranked(SchedulingProblem(nodes, (), queued))] == ["wide", "narrow"]


@pytest.mark.parametrize(("deadline", "late"), [(11, 0), (-5, 11)])
def test_the_solver_minimizes_the_objective_with_what_is_late(deadline: int, late: int) -> None:
    """A second past its deadline costs a task four times its weight more, from now on where that is past already: so it goes
    before a shorter one of three times its weight."""
    tasks = Queued("short", 1, 3, (10,)), Queued("late", 1, 1, (11,), deadline=deadline)
    problem = SchedulingProblem((PlanNode("n", 1),), (), tasks)
    found = search(problem, list(tasks), backfill(problem), SearchBudget(deterministic=1.0))
    assert found.starts is not None
    assert min(found.starts, key=lambda start: start.start).task == "late"
    cost = 11 + 4 * late + 3 * 21
    assert (found.status, found.bound, objective(problem, found.starts)) == ("OPTIMAL", cost, cost)
