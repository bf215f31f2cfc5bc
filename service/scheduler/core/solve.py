"""Computes a plan: start everything if it fits; else the better of rule-based backfill and CP-SAT over a window of the queue.

A closed batch instead gets the shortest makespan of the rules, multifit and, if it is small, CP-SAT. Deterministic: one solver
thread, a budget in CP-SAT's deterministic time, and a wall-clock guard that falls back to the rules and notes it. Knows no
database and no clock.
"""

from dataclasses import replace

from service.scheduler.core.cp_sat import Budget, Found, polish, search
from service.scheduler.core.decision import Decision
from service.scheduler.core.multifit import pack
from service.scheduler.core.plan_checks import violations
from service.scheduler.core.problem import Problem, Queued, Start, makespan, missed, objective
from service.scheduler.core.problem_checks import malformed
from service.scheduler.core.rules import backfill, lpt, ranked, start_all, widened
from service.scheduler.core.timeline import Timeline

BUDGET = Budget()


class MalformedProblem(ValueError):
    """The problem is malformed; the message names every wrong field."""


def solve(problem: Problem, budget: Budget = BUDGET) -> Decision:
    """The plan for `problem`. Deterministic unless the wall guard triggers, which `note` then says. Raises MalformedProblem."""
    wrong = malformed(problem)
    if wrong:
        raise MalformedProblem("; ".join(wrong))
    at_once = start_all(problem)
    if at_once is not None:
        return Decision(at_once, "start", objective(problem, at_once), late=missed(problem, at_once))
    return _closed(problem, budget) if problem.closed else _rolling(problem, budget)


def _rolling(problem: Problem, budget: Budget) -> Decision:
    order, board = ranked(problem), Timeline(problem)
    fallback = backfill(problem, order, board.copy())
    window = [replace(task, wider=()) for task in order[: budget.window]]
    seen = _of(fallback, window)
    found = search(problem, window, seen, budget)

    def decided(starts: tuple[Start, ...], method: str, note: str | None) -> Decision:
        value, wide = objective(problem, _of(starts, window)), widened(problem, starts)
        return Decision(wide, method, value, found.status, found.bound, note, missed(problem, wide))

    if found.starts is None:
        return decided(fallback, "greedy", found.note)
    planned = backfill(problem, order, board, found.starts)
    wrong = violations(problem, planned)
    if wrong or objective(problem, planned) > objective(problem, fallback):
        note = "; ".join(wrong) or "the solver's window leaves less for the rest of the queue than the rules do"
        return decided(fallback, "greedy", note)
    return decided(planned, "cpsat", None)


def _closed(problem: Problem, budget: Budget) -> Decision:
    """The shortest makespan of all methods tried; ties by the least weighted completion."""
    tried = {"greedy": backfill(problem), "batch": lpt(problem)}
    packed = pack(problem)
    if packed is not None:
        tried["batch"] = min(tried["batch"], packed, key=lambda starts: _worth(problem, starts))
    method = min(tried, key=lambda name: _worth(problem, tried[name]))
    best, found = tried[method], Found("UNKNOWN")
    tasks = list(problem.placeable)
    if len(tasks) <= budget.batch:
        found = polish(problem, tasks, best, budget)
        if found.starts is not None and _worth(problem, found.starts) < _worth(problem, best):
            method, best = "cpsat", found.starts
    best = widened(problem, best)
    status = None if len(tasks) > budget.batch else found.status
    return Decision(best, method, makespan(problem, best), status, found.bound, found.note, missed(problem, best))


def _worth(problem: Problem, starts: tuple[Start, ...]) -> tuple[int, int]:
    return makespan(problem, starts), objective(problem, starts)


def _of(starts: tuple[Start, ...], tasks: list[Queued]) -> tuple[Start, ...]:
    names = {task.id for task in tasks}
    return tuple(start for start in starts if start.task in names)
