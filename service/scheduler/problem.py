"""The scheduling problem and what a plan for it is worth. Values only: knows no database, no clock and no solver.

Times are whole seconds from the moment of the snapshot. A task keeps its GPUs, all on one node, from start to end.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

_CHURN_PART = 20  # moving a planned task costs a twentieth of an average completion (measured: lambda 20 at a mean of 373)


@dataclass(frozen=True)
class Node:
    """Identical GPUs, or CPU slots that stand in for them."""

    id: str
    gpus: int


@dataclass(frozen=True)
class Running:
    """A task on its node; it stays there for `remaining` > 0 seconds."""

    id: str
    node: str
    gpus: int
    remaining: int


@dataclass(frozen=True)
class Queued:
    """A task that waits. `seconds` follows the problem's nodes: the duration there, > 0, or None where it does not fit.

    `weight` > 0 is what a second of its completion costs; `planned` is the node that the plan before meant it for.
    """

    id: str
    gpus: int
    weight: int
    seconds: tuple[int | None, ...]
    planned: str | None = None

    @cached_property
    def shortest(self) -> int | None:
        """Its duration on the fastest node; None if it fits none."""
        return min((s for s in self.seconds if s is not None), default=None)


@dataclass(frozen=True)
class Start:
    """A queued task on a node from `start` to `end`."""

    task: str
    node: str
    start: int
    end: int


@dataclass(frozen=True)
class Problem:
    """`queued` stands in order of arrival, which breaks ties."""

    nodes: tuple[Node, ...]
    running: tuple[Running, ...]
    queued: tuple[Queued, ...]

    @cached_property
    def placeable(self) -> tuple[Queued, ...]:
        """The queued tasks that fit some node."""
        return tuple(task for task in self.queued if task.shortest is not None)

    @cached_property
    def churn(self) -> int:
        """What it costs to move a planned task to another node, in the objective's unit."""
        if not self.placeable:
            return 0
        seconds = sum(task.shortest or 0 for task in self.placeable)
        weights = sum(task.weight for task in self.placeable)
        return seconds * weights // (len(self.placeable) ** 2 * _CHURN_PART)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, and enough to plan again: `Problem.from_json` gives an equal problem."""
        return {
            "nodes": [asdict(node) for node in self.nodes],
            "running": [asdict(task) for task in self.running],
            "queued": [asdict(task) | {"seconds": list(task.seconds)} for task in self.queued],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Problem":
        return cls(
            nodes=tuple(Node(**node) for node in said["nodes"]),
            running=tuple(Running(**task) for task in said["running"]),
            queued=tuple(Queued(**(task | {"seconds": tuple(task["seconds"])})) for task in said["queued"]),
        )


def objective(problem: Problem, starts: Iterable[Start]) -> int:
    """Sum of weight x completion over `starts`, plus the churn of those that left the node they were planned for."""
    tasks = {task.id: task for task in problem.queued}
    cost = 0
    for start in starts:
        task = tasks[start.task]
        cost += task.weight * start.end
        cost += problem.churn if task.planned not in (None, start.node) else 0
    return cost


def violations(problem: Problem, starts: Iterable[Start]) -> list[str]:
    """What is wrong with a plan, in words: a node overfull, a wrong duration, a task twice or where it does not fit."""
    tasks = {task.id: task for task in problem.queued}
    places = {node.id: at for at, node in enumerate(problem.nodes)}
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for running in problem.running:
        changes[running.node] += [(0, running.gpus), (running.remaining, -running.gpus)]
    wrong: list[str] = []
    for start in starts:
        task = tasks.pop(start.task, None)
        if task is None or start.node not in places:
            wrong.append(f"{start.task} is not queued, stands twice, or names a node that is not there")
            continue
        seconds = task.seconds[places[start.node]]
        if seconds is None or start.start < 0 or start.end - start.start != seconds:
            wrong.append(f"{start.task} needs {seconds} s on {start.node}, not {start.start} to {start.end}")
        changes[start.node] += [(start.start, task.gpus), (start.end, -task.gpus)]
    for node in problem.nodes:
        taken = 0
        for at, change in sorted(changes[node.id]):  # at one moment ends come before starts, since they are negative
            taken += change
            if taken > node.gpus:
                wrong.append(f"{node.id} has {node.gpus} GPUs, {taken} are taken at {at}")
                break
    return wrong
