"""What holds for every plan, on random problems: the simulator checks them with code that the planner does not share."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.plan_checker import check
from service.scheduler.core.checks.plan_checks import violations
from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.plan_objective import missed, objective
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Width
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.rules import backfill, ranked
from service.scheduler.core.solve import MalformedProblem, solve
from service.scheduler.core.timeline import Timeline
from tests.service.scheduler.problems import problems, with_node

QUICK = SearchBudget(window=4, deterministic=0.005, polish=0.01)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_plan_is_possible_and_complete(problem: SchedulingProblem) -> None:
    """No overlap, node-local, memory, drains, limits, widths, nobody twice; everyone who fits has an expected start."""
    decision = solve(problem, QUICK)
    assert check(problem, decision.starts) == len(problem.placeable)
    assert violations(problem, decision.starts) == []
    assert decision.late == missed(problem, decision.starts)


@settings(max_examples=25, deadline=None)
@given(problems(closed=True))
def test_every_plan_of_a_closed_batch_is_possible_and_complete(problem: SchedulingProblem) -> None:
    decision = solve(problem, QUICK)
    assert check(problem, decision.starts) == len(problem.placeable)


@settings(max_examples=25, deadline=None)
@given(problems(), st.booleans())
def test_the_same_problem_has_the_same_plan(problem: SchedulingProblem, closed: bool) -> None:
    problem = replace(problem, closed=closed)
    again = problem_from_json(problem_to_json(problem))
    assert again == problem
    assert solve(again, QUICK) == solve(problem, QUICK)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_plan_is_never_worse_than_the_rules(problem: SchedulingProblem) -> None:
    decision = solve(problem, QUICK)
    if decision.method != "start":
        assert objective(problem, decision.starts) <= objective(problem, backfill(problem))


def test_a_plan_that_only_differs_later_is_the_rules() -> None:
    """The rules' order is not the best here, but what starts now is."""
    shapes = ((3, 60), (3, 40), (2, 120), (3, 100))
    queued = tuple(Queued(f"task{at}", gpus, 100, (seconds,)) for at, (gpus, seconds) in enumerate(shapes))
    decision = solve(SchedulingProblem((PlanNode("n", 3),), (), queued), SearchBudget())
    assert (decision.method, decision.status, decision.solved) == ("greedy", "OPTIMAL", ())
    assert decision.note == "the solver's plan starts nothing else now"
    assert decision.bound is not None
    assert decision.bound < decision.objective


@settings(max_examples=25, deadline=None)
@given(problems())
def test_with_one_more_node_the_plan_is_still_no_worse_than_the_rules_there(problem: SchedulingProblem) -> None:
    larger = with_node(problem)
    decision = solve(larger, QUICK)
    assert check(larger, decision.starts) == len(larger.placeable)
    if decision.method != "start":
        assert objective(larger, decision.starts) <= objective(larger, backfill(larger))


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 5))
def test_backfill_moves_no_planned_start(problem: SchedulingProblem, count: int) -> None:
    order = ranked(problem)
    timeline = Timeline(problem)
    planned = []
    for task in order[:count]:
        start = timeline.best(task)
        planned += [timeline.put(start)] if start else []
    filled = backfill(problem, order, planned=planned)
    assert filled[: len(planned)] == tuple(planned)
    check(problem, filled)


def test_a_wide_task_is_not_starved_by_narrow_ones() -> None:
    """Narrow ones keep coming, all in front of it; the wide one has a reservation and starts when what ran at first is done."""
    node = (PlanNode("n", 8),)
    wide = Queued("wide", 8, 100, (100,))
    running = tuple(RunningExecutor(f"r{at}", "n", 1, 20 + at) for at in range(8))
    narrow = tuple(Queued(f"q{at}", 1, 1, (50,)) for at in range(20))
    starts = {start.task: start for start in solve(SchedulingProblem(node, running, (*narrow, wide)), QUICK).starts}
    assert starts["wide"].start == 27


def test_a_limit_keeps_a_tenant_from_the_rest_of_the_fleet() -> None:
    tasks = tuple(Queued(f"q{at}", 2, 1, (10,), tenant="ada") for at in range(4))
    decision = solve(SchedulingProblem((PlanNode("n", 8),), (), tasks, (Limit("ada", 4),)), QUICK)
    assert sorted(start.start for start in decision.starts) == [0, 0, 10, 10]


def test_a_limit_below_what_a_task_needs_leaves_it_out() -> None:
    task = Queued("q", 2, 1, (10,), tenant="ada")
    assert solve(SchedulingProblem((PlanNode("n", 8),), (), (task,), (Limit("ada", 1),))).starts == ()


def test_idle_gpus_widen_a_task_that_is_alone() -> None:
    task = Queued("q", 2, 1, (100,), wider=(Width(4, (55,)), Width(8, (30,))))
    (start,) = solve(SchedulingProblem((PlanNode("n", 8),), (), (task,))).starts
    assert (start.gpus, start.end) == (8, 30)


def test_a_faster_type_is_taken_and_a_drained_node_is_not() -> None:
    nodes = (PlanNode("slow", 8), PlanNode("fast", 8), PlanNode("gone", 8, drained=True))
    (start,) = solve(SchedulingProblem(nodes, (), (Queued("q", 1, 1, (100, 40, 1)),))).starts
    assert (start.node, start.end) == ("fast", 40)


def test_a_task_that_would_be_late_goes_first_and_a_lost_deadline_is_foretold() -> None:
    nodes, running = (PlanNode("n", 1),), (RunningExecutor("r", "n", 1, 10),)
    short, due, lost = (
        Queued("short", 1, 1, (20,)),
        Queued("due", 1, 1, (30,), deadline=45),
        Queued("lost", 1, 1, (30,), deadline=15),
    )
    decision = solve(SchedulingProblem(nodes, running, (short, due)), QUICK)
    assert [start.task for start in sorted(decision.starts, key=lambda start: start.start)] == ["due", "short"]
    assert decision.late == ()
    decision = solve(SchedulingProblem(nodes, running, (lost,)), QUICK)
    assert [(late.task, late.deadline, late.end) for late in decision.late] == [("lost", 15, 40)]


def test_a_node_that_shrank_below_what_it_runs_takes_nothing_until_there_is_room() -> None:
    running = (RunningExecutor("a", "n", 4, 10), RunningExecutor("b", "n", 4, 30))
    (start,) = solve(SchedulingProblem((PlanNode("n", 4),), running, (Queued("q", 2, 1, (5,)),)), QUICK).starts
    assert start.start == 30


def test_malformed_problems_are_refused_by_the_field() -> None:
    problem = SchedulingProblem(
        (PlanNode("n", 2), PlanNode("n", 0)),
        (RunningExecutor("r", "elsewhere", 1, 0),),
        (Queued("q", 4, 0, (10, None)), Queued("p", 1, 1, (10,)), Queued("w", 1, 1, (0, None), wider=(Width(1, (1, 1)),))),
        (Limit("ada", -1),),
    )
    try:
        solve(problem)
    except MalformedProblem as refused:
        said = str(refused)
    else:
        raise AssertionError("a malformed problem was planned")
    for part in (
        "nodes: n stands there twice",
        "gpus is 0",
        "limit of ada",
        "running r",
        "queued q: weight is 0",
        "fits a node of 2 GPUs, but it takes 4",
        "queued p: seconds names 1 nodes, there are 2",
        "must be positive and rise",
        "queued w: seconds must be positive",
    ):
        assert part in said


def test_a_task_far_behind_heavy_ones_is_not_planned_where_it_no_longer_fits() -> None:
    """Beside them a move costs more than any wait for its planned node, which is drained and so never takes it."""
    days = (259_200, 259_200)
    heavy = tuple(Queued(f"heavy{at}", 1, 10**9, days) for at in range(60))
    light = Queued("light", 1, 1, (3600, 3600), planned="gone")
    problem = SchedulingProblem((PlanNode("n", 1), PlanNode("gone", 1, drained=True)), (), (*heavy, light))
    (start,) = (start for start in solve(problem, QUICK).starts if start.task == "light")
    assert (start.node, start.end) == ("n", 60 * days[0] + 3600)


def test_ten_thousand_waiting_tasks_all_get_a_possible_start() -> None:
    shapes = [((60 + 7 * at,) * 16, 1 << at % 4) for at in range(40)]
    queued = tuple(Queued(f"q{at}", gpus, 1 + at % 3, seconds) for at in range(10_000) for seconds, gpus in [shapes[at % 40]])
    problem = SchedulingProblem(tuple(PlanNode(f"n{at}", 8) for at in range(16)), (), queued)
    assert check(problem, solve(problem, QUICK).starts) == 10_000
