"""Holding a task back for shorter ones that are about to arrive: when it pays, when it never happens; plans stay sound."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.plan_checker import check
from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.expected_arrivals import ENOUGH, lasting_rate
from service.scheduler.core.problem import Arrived, PlanNode, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.rules import by_rule
from service.scheduler.core.solve import solve
from tests.service.scheduler.problems import problems

QUICK = SearchBudget(window=4, deterministic=0.0005)
HOUR = 3600
NODE = (PlanNode("n", 8),)
BUSY = tuple(
    RunningExecutor(f"r{at}", "n", 1, (4 + at) * HOUR) for at in range(7)
)  # one GPU of eight is free, the next in four hours
LONG = Queued("long", 1, 100, (20 * HOUR,))


def every(seconds: int, count: int = 40, last: int | None = None, lasts: int = 60) -> tuple[Arrived, ...]:
    """`count` arrivals of short tasks, one every `seconds`, the last one `last` seconds ago."""
    newest = seconds if last is None else last
    return tuple(Arrived(newest + at * seconds, 1, lasts) for at in reversed(range(count)))


def starts_now(problem: SchedulingProblem) -> bool:
    starts, held = by_rule(problem)
    begun = {start.task for start in starts if start.start == 0}
    assert begun.isdisjoint(held)
    return "long" in begun


def test_a_long_task_leaves_the_last_gpu_to_short_ones_that_keep_arriving() -> None:
    """Until the next GPU is free in four hours, 24 tasks of a minute would wait two hours each; it waits four."""
    held = SchedulingProblem(NODE, BUSY, (LONG,), recent=every(600))
    assert not starts_now(held)
    starts, names = by_rule(held)
    assert [(start.task, start.start) for start in starts] == [("long", 4 * HOUR)]
    assert names == ("long",)
    assert starts_now(replace(held, recent=every(4 * HOUR))), "one arrival is expected: too few"


def test_what_costs_more_to_hold_back_starts() -> None:
    held = SchedulingProblem(NODE, BUSY, (LONG,), recent=every(600))
    assert starts_now(replace(held, running=BUSY[:-1])), "another GPU stays free"
    assert starts_now(replace(held, queued=(replace(LONG, weight=100), replace(LONG, id="light", weight=1)))), (
        "it weighs more than most"
    )
    assert starts_now(replace(held, recent=every(600, lasts=30 * HOUR))), "those that arrive are longer"
    assert starts_now(replace(held, recent=every(600, lasts=19 * HOUR))), (
        "they would fill the GPU: one at a time saves too little"
    )
    assert starts_now(replace(held, queued=(replace(LONG, deadline=90 * HOUR),))), "it has a deadline"
    assert starts_now(replace(held, queued=(replace(LONG, waited=20 * HOUR + 1),))), "it has waited for as long as it will run"
    assert starts_now(replace(held, recent=held.recent[: ENOUGH - 1])), "too few arrivals to have a rate"
    assert solve(replace(held, closed=True)).held == (), "nothing arrives beside a closed batch"


def test_a_fleet_on_which_nothing_runs_keeps_nobody_waiting() -> None:
    pair = tuple(arrived._replace(gpus=2) for arrived in every(600))
    one_of_two = SchedulingProblem((PlanNode("n", 3),), BUSY[:1], (LONG,), recent=pair)
    assert not starts_now(one_of_two), "two GPUs are kept for those that want two"
    assert starts_now(replace(one_of_two, nodes=(PlanNode("n", 2),), running=()))


def test_a_burst_does_not_last_and_a_lull_does() -> None:
    steady, burst = every(600, 300), tuple(Arrived(60, 1, 60) for _ in range(50))
    rate = lasting_rate(steady)
    assert 0.99 / 600 < rate <= 1 / 600
    assert lasting_rate((*steady, *burst)) < 2 * rate
    assert lasting_rate(every(600, 300, last=6 * HOUR)) < 0.05 * rate
    assert lasting_rate(()) == 0


def test_each_short_task_that_arrives_takes_the_gpu_that_was_kept_for_it() -> None:
    short = Queued("short", 1, 100, (60,))
    starts = {start.task: start for start in solve(SchedulingProblem(NODE, BUSY, (LONG, short), recent=every(600))).starts}
    assert starts["short"].start == 0
    assert starts["long"].start > 0


def test_the_plan_names_what_it_held_back() -> None:
    decision = solve(SchedulingProblem(NODE, BUSY, (LONG,), recent=every(600)))
    assert decision.held == ("long",)
    assert "held back" in (decision.note or "")


@st.composite
def arriving(draw: st.DrawFn) -> SchedulingProblem:
    """A random problem with random arrivals: often enough to hold some tasks back."""
    problem = draw(problems())
    gaps = draw(st.lists(st.integers(0, 20), min_size=ENOUGH, max_size=30))
    agos = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    recent = tuple(Arrived(ago, draw(st.sampled_from((1, 2, 4, 8))), draw(st.integers(1, 60))) for ago in reversed(agos))
    queued = tuple(replace(task, waited=draw(st.sampled_from((0, 0, 30)))) for task in problem.queued)
    return replace(problem, recent=recent, queued=queued)


@settings(max_examples=60, deadline=None)
@given(arriving())
def test_plans_with_tasks_held_back_are_possible_complete_and_repeatable(problem: SchedulingProblem) -> None:
    decision = solve(problem, QUICK)
    assert check(problem, decision.starts) == len(problem.placeable)
    tasks = {task.id: task for task in problem.queued}
    for start in decision.starts:
        if start.task in decision.held:
            assert start.start > 0
            assert tasks[start.task].deadline is None
    again = problem_from_json(problem_to_json(problem))
    assert again == problem
    assert solve(again, QUICK) == decision


@settings(max_examples=40, deadline=None)
@given(arriving())
def test_the_solver_delays_nothing_that_the_rules_start_now(problem: SchedulingProblem) -> None:
    by_rules, _ = by_rule(problem)
    now = {start.task for start in solve(problem, QUICK).starts if start.start == 0}
    assert {start.task for start in by_rules if start.start == 0} <= now
