"""The objective of a plan, and what else plans are compared by. Values only."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from service.scheduler.core.problem import LATE_FACTOR, Queued, SchedulingProblem, Start


def cost(task: Queued, start: Start, churn: int) -> int:
    """The cost of this start: weight x completion, more past the deadline, plus `churn` off its planned node."""
    late = 0 if task.deadline is None else max(0, start.end - max(0, task.deadline))
    moved = task.planned not in (None, start.node)
    return task.weight * (start.end + LATE_FACTOR * late) + (churn if moved else 0)


def objective(problem: SchedulingProblem, starts: Iterable[Start]) -> int:
    """The sum of `cost` over `starts`."""
    tasks = {task.id: task for task in problem.queued}
    return sum(cost(tasks[start.task], start, problem.churn) for start in starts)


def slowdown(problem: SchedulingProblem, starts: Iterable[Start]) -> float:
    """The sum of (waited + end) / duration over `starts`: the expected slowdown, each task's on its fastest node."""
    tasks = {task.id: task for task in problem.queued}
    return sum((tasks[start.task].waited + start.end) / (tasks[start.task].shortest or 1) for start in starts)


def makespan(problem: SchedulingProblem, starts: Iterable[Start]) -> int:
    """Seconds until the last running or planned task ends."""
    return max(chain((task.remaining for task in problem.running), (start.end for start in starts)), default=0)


@dataclass(frozen=True)
class Missed:
    """A deadline that the plan misses. Seconds from now."""

    task: str
    deadline: int
    end: int


def missed(problem: SchedulingProblem, starts: Iterable[Start]) -> tuple[Missed, ...]:
    """The deadlines that the plan misses, in queue order."""
    ends = {start.task: start.end for start in starts}
    return tuple(
        Missed(task.id, task.deadline, ends[task.id])
        for task in problem.queued
        if task.id in ends and task.deadline is not None and ends[task.id] > task.deadline
    )
