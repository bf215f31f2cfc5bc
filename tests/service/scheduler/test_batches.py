"""Batches in a plan: valid, no later for anybody outside, no longer than without; and makespans on a coarser clock."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.scheduler.core.batch_arrangement import alone, in_units, plan_by_rules, tightened
from service.scheduler.core.checks.plan_checks import violations
from service.scheduler.core.cp_sat import polish
from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.problem import PlanNode, Queued, RunningExecutor, SchedulingProblem, Start
from service.scheduler.core.solve import solve
from tests.service.scheduler.problems import problems

QUICK = SearchBudget(polish=0.05, deterministic=0.002, wall=60.0)


@st.composite
def with_batches(draw: st.DrawFn) -> SchedulingProblem:
    """A problem in which each task belongs to one of two batches, or to none."""
    problem = draw(problems())
    given = [draw(st.sampled_from((None, "one", "two"))) for _ in problem.queued]
    return replace(problem, queued=tuple(replace(task, batch=name) for task, name in zip(problem.queued, given, strict=True)))


def last(starts: tuple[Start, ...], problem: SchedulingProblem, batch: str) -> int:
    names = {task.id for task in problem.queued if task.batch == batch}
    return max((start.end for start in starts if start.task in names), default=0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(with_batches())
def test_a_batch_is_arranged_without_harm(problem):
    plain = replace(problem, queued=tuple(replace(task, batch=None) for task in problem.queued))
    before, after = solve(plain, QUICK), solve(problem, QUICK)
    assert not violations(problem, after.starts)
    assert {start.task for start in after.starts} == {start.task for start in before.starts}
    assert not violations(problem, plan_by_rules(problem)[0])
    told = {plan.batch: plan.makespan for plan in after.batches}
    assert told == {name: last(after.starts, problem, name) for name in {t.batch for t in problem.placeable} - {None}}
    if alone(problem) is not None:
        return  # nobody is outside
    outside = {task.id for task in problem.queued if task.batch is None}
    assert {s for s in after.starts if s.task in outside} == {s for s in before.starts if s.task in outside}
    for name in told:
        assert last(after.starts, problem, name) <= last(before.starts, problem, name)


def of(batch: str | None, *shapes: tuple[int, int]) -> tuple[Queued, ...]:
    """Tasks of (GPUs, seconds)."""
    return tuple(Queued(f"{batch}{at}", gpus, 1, (seconds,), batch=batch) for at, (gpus, seconds) in enumerate(shapes))


def test_a_batch_is_improved_by_the_solver_beside_others_that_leave_no_gap():
    """Two others take the whole node one after the other, at moments that its coarser clock has none for."""
    others = tuple(replace(task, weight=10**6) for task in of(None, (4, 7001), (4, 7003)))
    batch = of("b", (2, 3001), (2, 2003), (2, 2003), (2, 2003), (2, 3001))
    running = (RunningExecutor("r", "n", 1, 501),)
    found = solve(SchedulingProblem((PlanNode("n", 4),), running, (*others, *batch)), QUICK)
    assert (found.batches[0].method, found.batches[0].status) == ("cpsat", "FEASIBLE")
    assert found.batches[0].makespan == 501 + 7001 + 7003 + 3 * 2003


def test_a_batch_alone_ends_at_the_optimum():
    found = solve(SchedulingProblem((PlanNode("n", 4),), (), of("b", (2, 30), (2, 20), (2, 20), (2, 20), (2, 30))))
    assert (found.batches[0].makespan, found.batches[0].status, found.batches[0].bound) == (60, "OPTIMAL", 60)


def test_a_batch_beside_others_is_arranged_around_them():
    """By the rules, shortest first, the batch would end at 130: its longest task comes last."""
    problem = SchedulingProblem((PlanNode("n", 2),), (), (*of("b", (1, 60), (1, 20), (1, 20), (1, 20)), *of(None, (1, 10))))
    plain = solve(replace(problem, queued=tuple(replace(task, batch=None) for task in problem.queued)))
    found = solve(problem)
    assert found.batches[0].makespan < last(plain.starts, problem, "b")
    assert not violations(problem, found.starts)
    assert [s for s in found.starts if s.task == "None0"] == [s for s in plain.starts if s.task == "None0"]


@pytest.mark.parametrize("unit", [60, 3600])
def test_a_common_unit_keeps_the_proof(unit):
    shapes = [(4, 311), (4, 402), (2, 250), (2, 377), (2, 198), (1, 420), (1, 333), (1, 291), (1, 154)]
    small, large = (SchedulingProblem((PlanNode("n", 8),), (), of("b", *((g, s * by) for g, s in shapes))) for by in (1, unit))
    one, other = solve(small), solve(large)
    assert (one.status, other.status) == ("OPTIMAL", "OPTIMAL")
    assert other.objective == unit * one.objective == other.bound


def test_a_rounded_search_promises_no_optimum():
    shapes = [(4, 31111), (4, 40222), (2, 25033), (2, 37744), (2, 19855), (1, 42066), (1, 33377)]
    problem = replace(SchedulingProblem((PlanNode("n", 8),), (), of("b", *shapes)), closed=True)
    hint, _ = plan_by_rules(problem)

    def search(problem, tasks, hint, fixed):
        return polish(problem, tasks, hint, SearchBudget(wall=60.0), fixed)

    found = in_units(search, problem, list(problem.queued), hint)
    assert (found.status, found.bound) == ("FEASIBLE", None)
    assert not violations(problem, found.starts)
    assert tightened(problem, found.starts) == tuple(sorted(found.starts, key=lambda start: (start.start, start.task)))
