"""Batches: the tasks of one batch arranged for the shortest makespan, while nobody outside starts later. Loads no solver.

A batch that waits alone is a closed problem: `solve` plans it as such. Beside others, the starts of all other tasks stay as the
rolling plan has them, and the batch's tasks are placed anew around them: longest first, then by CP-SAT. CP-SAT searches on a
coarser clock, in units of a two-thousandth of the makespan: on domains of 100,000 seconds it finds nothing within its budget. A
common divisor of all durations is taken where there is one: then the result is exact. Values only.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd

from service.scheduler.core.checks.plan_checks import violations
from service.scheduler.core.decision import BatchPlan, Decision, SearchResult
from service.scheduler.core.multifit import pack
from service.scheduler.core.plan_objective import makespan, missed, objective
from service.scheduler.core.problem import Queued, SchedulingProblem, Start, Width
from service.scheduler.core.rules import backfill, by_rule, longest_first, lpt, start_all, widened
from service.scheduler.core.timeline import Timeline

UNITS = 2000  # of the hint's makespan

# Of tasks, from a hint, beside fixed starts.
Polish = Callable[[SchedulingProblem, list[Queued], tuple[Start, ...], Sequence[Start]], SearchResult]


def alone(problem: SchedulingProblem) -> str | None:
    """The batch that every placeable task belongs to, if there is one."""
    batches = {task.batch for task in problem.placeable}
    return next(iter(batches)) if len(batches) == 1 else None


def plan_by_rules(problem: SchedulingProblem) -> tuple[tuple[Start, ...], tuple[str, ...]]:
    """As `solve`, by the rules and multifit alone, for answers that cannot wait for CP-SAT; and the tasks held back."""
    if not problem.closed and alone(problem) is not None:
        closed = replace(problem, closed=True)
        starts = start_all(closed)
        return widened(closed, shortest(closed)[1]) if starts is None else starts, ()
    starts, held = by_rule(problem)
    return arrange(problem, Decision(starts, "greedy", 0, held=held), None, 0).starts, held


def shortest(problem: SchedulingProblem) -> tuple[str, tuple[Start, ...]]:
    """The shortest makespan of the rules and multifit, and which of them found it; ties by the least weighted completion."""

    def worth(starts: tuple[Start, ...]) -> tuple[int, int]:
        return makespan(problem, starts), objective(problem, starts)

    tried = {"greedy": backfill(problem), "batch": lpt(problem)}
    packed = pack(problem)
    if packed is not None:
        tried["batch"] = min(tried["batch"], packed, key=worth)
    return min(tried.items(), key=lambda item: worth(item[1]))


def arrange(problem: SchedulingProblem, decision: Decision, polish: Polish | None, most: int) -> Decision:
    """`decision` with each batch's tasks arranged anew where that ends the batch sooner; batches of up to `most` waiting tasks
    by `polish` too."""
    members: dict[str, list[Queued]] = defaultdict(list)
    for task in problem.placeable:
        if task.batch is not None and task.id not in decision.held:  # held for arrivals that nobody knows yet
            members[task.batch].append(task)
    if not members:
        return decision
    starts, plans = decision.starts, list[BatchPlan]()
    for batch, tasks in members.items():
        starts, plan = _arranged(problem, batch, tasks, starts, polish if 1 < len(tasks) <= most else None)
        plans.append(plan)
    return replace(decision, starts=starts, late=missed(problem, starts), batches=tuple(plans))


def _arranged(
    problem: SchedulingProblem, batch: str, tasks: list[Queued], starts: tuple[Start, ...], polish: Polish | None
) -> tuple[tuple[Start, ...], BatchPlan]:
    names = {task.id for task in tasks}
    others = tuple(start for start in starts if start.task not in names)
    mine = tuple(start for start in starts if start.task in names)
    tried = {"rules": mine, "longest_first": _beside(problem, tasks, others)}
    method = min(tried, key=lambda name: _worth(problem, tried[name]))
    best, status, bound = tried[method], None, None
    if polish is not None and len(best) == len(tasks):
        found = polish(problem, tasks, best, others)
        status, bound = found.status, found.bound
        if found.starts is not None and _worth(problem, found.starts) < _worth(problem, best):
            method, best = "cpsat", found.starts
    if violations(problem, (*others, *best)):
        method, best = "rules", mine
    kept = {start.task: start for start in best}
    starts = tuple(kept.get(start.task, start) for start in starts)
    whole = {task.id for task in problem.queued if task.batch == batch}
    last = max((start.end for start in starts if start.task in whole), default=0)
    return starts, BatchPlan(batch, last, method, status, bound)


def _beside(problem: SchedulingProblem, tasks: Sequence[Queued], others: Sequence[Start]) -> tuple[Start, ...]:
    timeline = Timeline(problem)
    for start in others:
        timeline.put(start)
    return longest_first(timeline, tasks)


def _worth(problem: SchedulingProblem, starts: tuple[Start, ...]) -> tuple[int, int, int]:
    """Fewer tasks placed is worse than any makespan; ties by weighted completion."""
    return -len(starts), max((start.end for start in starts), default=0), objective(problem, starts)


# ---- a coarser clock -------------------------------------------------------------------------------------------------


def in_units(
    polish: Polish, problem: SchedulingProblem, tasks: list[Queued], hint: tuple[Start, ...], fixed: Sequence[Start] = ()
) -> SearchResult:
    """What `polish` finds, each task as early as its place allows: plans are made only when something ends or arrives.

    Where durations had to be rounded, the status is at most FEASIBLE, and there is no bound.
    """
    unit = _unit(problem, tasks, hint, fixed)
    if unit == 1:
        found = polish(problem, tasks, hint, fixed)
        return found if found.starts is None else replace(found, starts=tightened(problem, found.starts, fixed))
    coarse = replace(
        problem,
        running=tuple(replace(run, remaining=_up(run.remaining, unit)) for run in problem.running),
        queued=tuple(_in_units(task, unit) for task in problem.queued),
    )
    others = [replace(start, start=start.start // unit, end=_up(start.end, unit)) for start in fixed]
    window = [coarse.queued[coarse.row[task.id]] for task in tasks]
    found = polish(coarse, window, tightened(coarse, hint, others), others)
    if found.starts is None:
        return found
    starts = tightened(problem, found.starts, fixed)
    if all(number % unit == 0 for number in _numbers(problem, tasks, fixed)):
        return replace(found, starts=starts, bound=None if found.bound is None else found.bound * unit)
    return replace(found, status="FEASIBLE", starts=starts, bound=None)


def tightened(problem: SchedulingProblem, starts: Sequence[Start], fixed: Sequence[Start] = ()) -> tuple[Start, ...]:
    """The same tasks on the same nodes and widths, in the same order, each as early as the ones before it allow."""
    timeline = Timeline(problem)
    for start in fixed:
        timeline.put(start)
    return tuple(timeline.put(timeline.earlier(start)) for start in sorted(starts, key=lambda start: (start.start, start.task)))


def _unit(problem: SchedulingProblem, tasks: Sequence[Queued], hint: Sequence[Start], fixed: Sequence[Start]) -> int:
    rounded = max(1, max((start.end for start in hint), default=0) // UNITS)
    common = gcd(*_numbers(problem, tasks, fixed))
    return common if common >= rounded else rounded


def _numbers(problem: SchedulingProblem, tasks: Sequence[Queued], fixed: Sequence[Start]) -> list[int]:
    """Every duration and moment that the search sees."""
    spent = [seconds for task in tasks for width in task.widths for seconds in width.seconds if seconds is not None]
    moments = [moment for start in fixed for moment in (start.start, start.end)]
    return spent + moments + [run.remaining for run in problem.running]


def _up(seconds: int, unit: int) -> int:
    return -(-seconds // unit)


def _in_units(task: Queued, unit: int) -> Queued:
    def coarse(seconds: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(None if one is None else _up(one, unit) for one in seconds)

    wider = tuple(Width(width.gpus, coarse(width.seconds)) for width in task.wider)
    return replace(task, seconds=coarse(task.seconds), wider=wider, deadline=None)
