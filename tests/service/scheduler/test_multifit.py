"""Closed batches: ALTO's instance is optimal, tight ones come close to their bound. Quality at fixed work, never latency."""

import pytest

from benchmarks.simulator.arrivals import Arrival, closed, eleven
from benchmarks.simulator.plan_checker import check
from service.scheduler.core.multifit import pack
from service.scheduler.core.plan_objective import makespan
from service.scheduler.core.problem import PlanNode, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.solve import solve


def problem_of(tasks: list[Arrival], nodes: int) -> SchedulingProblem:
    return SchedulingProblem(
        tuple(PlanNode(f"n{at}", 8) for at in range(nodes)),
        (),
        tuple(Queued(task.id, task.gpus, 1, (task.worst,) * nodes) for task in tasks),
        closed=True,
    )


def bound_of(problem: SchedulingProblem) -> float:
    area = sum(task.gpus * task.seconds[0] for task in problem.queued if task.seconds[0]) / sum(n.gpus for n in problem.nodes)
    return max(area, max(task.seconds[0] or 0 for task in problem.queued))


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_eleven_tasks_on_eight_gpus_are_proven_optimal(seed: int) -> None:
    problem = problem_of(eleven(seed), 1)
    decision = solve(problem)
    check(problem, decision.starts)
    assert (decision.status, decision.bound) == ("OPTIMAL", decision.objective)


def test_a_tight_batch_ends_within_two_percent_of_its_bound() -> None:
    problem = problem_of(closed(200, seed=0, minute=60), 16)
    starts = pack(problem, moves=600)
    assert starts is not None
    assert check(problem, starts) == 200
    assert makespan(problem, starts) <= 1.02 * bound_of(problem)


def test_what_runs_is_stood_upon() -> None:
    problem = SchedulingProblem(
        (PlanNode("n", 4),),
        (RunningExecutor("r", "n", 2, 100),),
        tuple(Queued(f"q{at}", 1, 1, (50,)) for at in range(4)),
        closed=True,
    )
    starts = pack(problem, moves=50)
    assert starts is not None
    assert check(problem, starts) == 4
    assert makespan(problem, starts) == 100


def test_durations_that_depend_on_the_node_are_left_to_others() -> None:
    problem = SchedulingProblem((PlanNode("a", 4), PlanNode("b", 4)), (), (Queued("q", 1, 1, (10, 20)),), closed=True)
    assert pack(problem) is None
    assert solve(problem).starts[0].end == 10


def test_a_drained_node_lends_no_duration_to_a_batch() -> None:
    """Found by the invariants: the drained node was the faster one."""
    nodes = (PlanNode("gone", 1, drained=True), PlanNode("n", 1))
    problem = SchedulingProblem(nodes, (), (Queued("p", 1, 1, (24, 48)), Queued("q", 1, 1, (33, 66))), closed=True)
    assert check(problem, solve(problem).starts) == 2
