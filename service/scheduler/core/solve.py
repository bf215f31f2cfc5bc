"""Computes a plan: start everything if it fits; else backfill by rules with regard to expected arrivals, improved by CP-SAT.

CP-SAT's plan is taken where it is no worse by weighted completion, by deadlines and by expected slowdown (unless it saves a
deadline), delays nothing that the rules start now, and starts something else now: all later starts are planned anew with the
next arrival or end, so a plan that only differs there is a prediction, and the rules' is what the next plan continues.

A closed batch instead gets the shortest makespan of the rules, multifit and, if it is small, CP-SAT. Deterministic: one solver
thread, a budget in CP-SAT's deterministic time, and a wall-clock guard that falls back to the rules and notes it. Knows no
database and no clock.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.scheduler.core.batch_arrangement import alone, arrange, in_units, shortest
from service.scheduler.core.checks.plan_checks import violations
from service.scheduler.core.checks.problem_checks import malformed
from service.scheduler.core.cp_sat import polish, search
from service.scheduler.core.decision import BatchPlan, Decision, SearchBudget, SearchResult
from service.scheduler.core.expected_arrivals import ExpectedArrivals
from service.scheduler.core.joins.joining import joined
from service.scheduler.core.plan_objective import makespan, missed, objective, slowdown
from service.scheduler.core.problem import Queued, SchedulingProblem, Start
from service.scheduler.core.rules import backfill, ranked, start_all, widened
from service.scheduler.core.timeline import Timeline

BUDGET = SearchBudget()
BESIDE = 0.05  # deterministic CP-SAT budget of a batch beside others, which is planned anew with every arrival


class MalformedProblem(ValueError):
    """The problem is malformed; the message names every wrong field."""


def solve(problem: SchedulingProblem, budget: SearchBudget = BUDGET) -> Decision:
    """The plan for `problem`, with the joins that it leaves room for. Deterministic unless the wall guard triggers, which
    `note` then says. Raises MalformedProblem."""
    wrong = malformed(problem)
    if wrong:
        raise MalformedProblem("; ".join(wrong))
    return joined(problem, without_joins(problem, budget))


def without_joins(problem: SchedulingProblem, budget: SearchBudget = BUDGET) -> Decision:
    """The plan without joins, for a problem that is not malformed."""
    batch = None if problem.closed else alone(problem)
    problem = replace(problem, closed=True) if batch is not None else problem
    order = ranked(problem)
    arrivals = ExpectedArrivals(problem, order)
    at_once = start_all(problem, arrivals)
    if at_once is not None:
        told = _at_once(problem, at_once)
        return Decision(at_once, "start", objective(problem, at_once), late=missed(problem, at_once), batches=told)
    if batch is not None:
        found = _closed(problem, budget)
        return replace(found, batches=(BatchPlan(batch, _last(found.starts), found.method, found.status, found.bound),))
    if problem.closed:
        return _closed(problem, budget)
    beside = replace(budget, polish=min(BESIDE, budget.polish))

    def around(
        problem: SchedulingProblem, tasks: list[Queued], hint: tuple[Start, ...], fixed: Sequence[Start]
    ) -> SearchResult:
        return _polished(problem, tasks, hint, beside, fixed)

    return arrange(problem, _rolling(problem, order, arrivals, budget), around, budget.batch)


def _at_once(problem: SchedulingProblem, starts: Sequence[Start]) -> tuple[BatchPlan, ...]:
    ends: dict[str, int] = {}
    by_id = {task.id: task.batch for task in problem.queued}
    for start in starts:
        if (batch := by_id[start.task]) is not None:
            ends[batch] = max(ends.get(batch, 0), start.end)
    return tuple(BatchPlan(batch, end, "start") for batch, end in ends.items())


def _last(starts: Sequence[Start]) -> int:
    return max((start.end for start in starts), default=0)


def _polished(
    problem: SchedulingProblem, tasks: list[Queued], hint: tuple[Start, ...], budget: SearchBudget, fixed: Sequence[Start] = ()
) -> SearchResult:
    def search_(
        problem: SchedulingProblem, tasks: list[Queued], hint: tuple[Start, ...], fixed: Sequence[Start]
    ) -> SearchResult:
        return polish(problem, tasks, hint, budget, fixed)

    return in_units(search_, problem, tasks, hint, fixed)


def _rolling(problem: SchedulingProblem, order: list[Queued], arrivals: ExpectedArrivals, budget: SearchBudget) -> Decision:
    timeline = Timeline(problem)
    fallback = backfill(problem, order, timeline.copy(), arrivals=arrivals)
    held = tuple(arrivals.held)
    window = _window(order, arrivals, timeline, fallback, budget.window)
    seen = _of(fallback, window)
    found = (
        search(problem, window, seen, budget)
        if window
        else SearchResult("UNKNOWN", note="every task that could start is held back")
    )

    def decided(starts: tuple[Start, ...], method: str, note: str | None) -> Decision:
        value, before = objective(problem, _of(starts, window)), set(fallback)
        solved = tuple(start.task for start in _of(starts, window) if start not in before)
        wide = starts if held else widened(problem, starts)
        return Decision(wide, method, value, found.status, found.bound, note, missed(problem, wide), held, solved)

    if found.starts is None:
        return decided(fallback, "greedy", found.note)
    if set(found.starts) == set(seen):
        return decided(fallback, "cpsat", None)
    planned = backfill(problem, order, timeline.copy(), found.starts, arrivals=arrivals)
    why = _worse(problem, planned, fallback) or _unforeseen(problem, found.starts, fallback, arrivals, timeline)
    if why:
        return decided(fallback, "greedy", why)
    return decided(planned, "cpsat", None)


def _window(
    order: list[Queued], arrivals: ExpectedArrivals, timeline: Timeline, fallback: tuple[Start, ...], most: int
) -> list[Queued]:
    """The tasks for the solver, none of them held back: half are those whose deadlines the rules miss and the first of the
    queue, half those that free GPUs have room for, by rank."""
    late = {miss.task for miss in missed(timeline.problem, fallback)}
    able = sorted((task for task in order if task.id not in arrivals.held), key=lambda task: task.id not in late)
    first, others = able[: most // 2], able[most // 2 :]
    chosen = [*first, *sorted(others, key=lambda task: task.gpus > timeline.most_free)][:most]
    return [replace(task, wider=()) for task in chosen]


def _worse(problem: SchedulingProblem, planned: tuple[Start, ...], fallback: tuple[Start, ...]) -> str | None:
    """Why the solver's plan is not taken: it breaks a rule, is worse by weighted completion or deadlines, has a higher expected
    slowdown and saves no deadline by it, starts nothing else now, or delays what the rules would start now."""
    if wrong := violations(problem, planned):
        return "; ".join(wrong)
    if objective(problem, planned) > objective(problem, fallback):
        return "the solver's window leaves less for the rest of the queue than the rules do"
    late, late_by_rule = len(missed(problem, planned)), len(missed(problem, fallback))
    if late > late_by_rule:
        return "the solver's plan misses more deadlines than the rules'"
    if late == late_by_rule and slowdown(problem, planned) > slowdown(problem, fallback):
        return "the solver's plan has a higher expected slowdown than the rules'"
    now, by_rule = _starting(planned), _starting(fallback)
    if now == by_rule:
        return "the solver's plan starts nothing else now"
    if {start.task for start in by_rule} - {start.task for start in now}:
        return "the solver's plan delays tasks that the rules start now"
    return None


def _starting(starts: tuple[Start, ...]) -> set[Start]:
    return {start for start in starts if start.start == 0}


def _unforeseen(
    problem: SchedulingProblem,
    starts: tuple[Start, ...],
    fallback: tuple[Start, ...],
    arrivals: ExpectedArrivals,
    timeline: Timeline,
) -> str | None:
    """Why the solver's starts now are not taken: one that the rules do not make would block foreseen arrivals."""
    tasks, by_rule = {task.id: task for task in problem.queued}, {start.task for start in fallback if start.start == 0}
    for start in sorted(starts, key=lambda start: start.task not in by_rule):
        if start.start == 0 and start.task not in by_rule and arrivals.hold_until(tasks[start.task], start, timeline):
            return "the solver's plan blocks arrivals that are foreseen"
        timeline.put(start)
    return None


def _closed(problem: SchedulingProblem, budget: SearchBudget) -> Decision:
    """The shortest makespan of all methods tried; ties by the least weighted completion."""
    method, best = shortest(problem)
    found = SearchResult("UNKNOWN")
    tasks = list(problem.placeable)
    if len(tasks) <= budget.batch:
        found = _polished(problem, tasks, best, budget)
        if found.starts is not None and _worth(problem, found.starts) < _worth(problem, best):
            method, best = "cpsat", found.starts
    best = widened(problem, best)
    status = None if len(tasks) > budget.batch else found.status
    return Decision(best, method, makespan(problem, best), status, found.bound, found.note, missed(problem, best))


def _worth(problem: SchedulingProblem, starts: tuple[Start, ...]) -> tuple[int, int]:
    return makespan(problem, starts), objective(problem, starts)


def _of(starts: tuple[Start, ...], tasks: list[Queued]) -> tuple[Start, ...]:
    names = {task.id for task in tasks}
    return tuple(start for start in starts if start.task in names)
