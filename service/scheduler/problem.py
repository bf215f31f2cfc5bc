"""The scheduling problem and what a plan for it is worth. Values only: knows no database, no clock and no solver.

Times are whole seconds from the moment of the snapshot. A task keeps its GPUs, all on one node, from start to end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

_CHURN_PART = 20  # moving a planned task costs a twentieth of an average completion (measured: lambda 20 at a mean of 373)
LATE_FACTOR = 4  # a second past its deadline costs a task this many times its weight, on top of the second itself


@dataclass(frozen=True)
class Node:
    """Identical GPUs, or CPU slots that stand in for them. A drained node finishes what runs and takes nothing new."""

    id: str
    gpus: int
    drained: bool = False


@dataclass(frozen=True)
class Limit:
    """The most GPUs that a tenant may hold at once, over all nodes."""

    tenant: str
    gpus: int


@dataclass(frozen=True)
class Running:
    """A task on its node; it stays there for `remaining` > 0 seconds."""

    id: str
    node: str
    gpus: int
    remaining: int
    tenant: str = ""


@dataclass(frozen=True)
class Width:
    """A way to run a task. `seconds` follows the problem's nodes: the duration there, > 0, or None where it does not fit."""

    gpus: int
    seconds: tuple[int | None, ...]


@dataclass(frozen=True)
class Queued:
    """A task that waits. `gpus` and `seconds` are its narrowest width, `wider` the others it could run at.

    `weight` > 0 is what a second of its completion costs; `planned` is the node that the plan before meant it for;
    `deadline` may lie in the past.
    """

    id: str
    gpus: int
    weight: int
    seconds: tuple[int | None, ...]
    planned: str | None = None
    tenant: str = ""
    deadline: int | None = None
    wider: tuple[Width, ...] = ()

    @cached_property
    def shortest(self) -> int | None:
        """Its duration on the fastest node at its narrowest width; None if it fits none."""
        return min(filter(None, self.seconds), default=None)

    @cached_property
    def widths(self) -> tuple[Width, ...]:
        """All of them, narrowest first."""
        return (Width(self.gpus, self.seconds), *self.wider)


@dataclass(frozen=True)
class Start:
    """A queued task on `gpus` GPUs of a node from `start` to `end`."""

    task: str
    node: str
    start: int
    end: int
    gpus: int


@dataclass(frozen=True)
class Problem:
    """`queued` stands in order of arrival, which breaks ties. `closed` says that nothing else will come: makespan counts."""

    nodes: tuple[Node, ...]
    running: tuple[Running, ...]
    queued: tuple[Queued, ...]
    limits: tuple[Limit, ...] = ()
    closed: bool = False

    @cached_property
    def placeable(self) -> tuple[Queued, ...]:
        """The queued tasks that fit some node which takes tasks, and their tenant's limit, at their narrowest."""
        most = {limit.tenant: limit.gpus for limit in self.limits}
        return tuple(
            task
            for task in self.queued
            if task.gpus <= most.get(task.tenant, task.gpus)
            and any(s is not None and not node.drained for s, node in zip(task.seconds, self.nodes, strict=True))
        )

    @cached_property
    def churn(self) -> int:
        """What it costs to move a planned task to another node, in the objective's unit."""
        if not self.placeable:
            return 0
        seconds = sum(task.shortest or 0 for task in self.placeable)
        weights = sum(task.weight for task in self.placeable)
        return seconds * weights // (len(self.placeable) ** 2 * _CHURN_PART)

    @cached_property
    def horizon(self) -> int:
        """By when everything can be done one after another: no plan needs longer."""
        longest = sum(max(filter(None, task.seconds), default=0) for task in self.queued)
        return max((task.remaining for task in self.running), default=0) + longest

    def to_json(self) -> dict[str, Any]:
        """JSON-ready, and enough to plan again: `Problem.from_json` gives an equal problem."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Problem":
        return cls(
            nodes=tuple(Node(**node) for node in said["nodes"]),
            running=tuple(Running(**task) for task in said["running"]),
            queued=tuple(_queued(task) for task in said["queued"]),
            limits=tuple(Limit(**limit) for limit in said.get("limits", ())),
            closed=said.get("closed", False),
        )


def _queued(said: Mapping[str, Any]) -> Queued:
    wider = tuple(Width(width["gpus"], tuple(width["seconds"])) for width in said.get("wider", ()))
    return Queued(**{**said, "seconds": tuple(said["seconds"]), "wider": wider})


def cost(task: Queued, start: Start, churn: int) -> int:
    """What this start costs: weight x completion, more past the deadline, and `churn` off the node it was planned for."""
    late = 0 if task.deadline is None else max(0, start.end - max(0, task.deadline))
    moved = task.planned not in (None, start.node)
    return task.weight * (start.end + LATE_FACTOR * late) + (churn if moved else 0)


def objective(problem: Problem, starts: Iterable[Start]) -> int:
    """The sum of `cost` over `starts`."""
    tasks = {task.id: task for task in problem.queued}
    return sum(cost(tasks[start.task], start, problem.churn) for start in starts)


def makespan(problem: Problem, starts: Iterable[Start]) -> int:
    """When the last running or planned task ends."""
    return max(chain((task.remaining for task in problem.running), (start.end for start in starts)), default=0)


def malformed(problem: Problem) -> list[str]:
    """What makes a problem meaningless, in words that name the field."""
    wrong = []
    for what, ids in (
        ("nodes", [node.id for node in problem.nodes]),
        ("running and queued", [task.id for task in chain(problem.running, problem.queued)]),
        ("limits", [limit.tenant for limit in problem.limits]),
    ):
        if len(set(ids)) != len(ids):
            wrong.append(f"{what}: {next(name for name in ids if ids.count(name) > 1)} stands there twice")
    names = {node.id for node in problem.nodes}
    wrong += [f"node {node.id}: gpus is {node.gpus}, must be positive" for node in problem.nodes if node.gpus < 1]
    wrong += [
        f"limit of {limit.tenant}: gpus is {limit.gpus}, must not be negative" for limit in problem.limits if limit.gpus < 0
    ]
    for run in problem.running:
        if run.node not in names or run.gpus < 1 or run.remaining < 1:
            wrong.append(f"running {run.id}: {run.gpus} GPUs of node {run.node} for {run.remaining} s is not possible")
    for task in problem.queued:
        wrong += [f"queued {task.id}: {why}" for why in _malformed_task(task, problem.nodes)]
    return wrong


def _malformed_task(task: Queued, nodes: tuple[Node, ...]) -> list[str]:
    wrong = [] if task.weight >= 1 else [f"weight is {task.weight}, must be positive"]
    gpus = [width.gpus for width in task.widths]
    if gpus[0] < 1 or sorted(set(gpus)) != gpus:
        wrong.append(f"widths are {gpus}, must be positive and rise")
    for width in task.widths:
        if len(width.seconds) != len(nodes):
            wrong.append(f"seconds names {len(width.seconds)} nodes, there are {len(nodes)}")
            continue
        if any(s < 1 for s in width.seconds if s is not None):
            wrong.append("seconds must be positive, or None where it does not fit")
        tight = next((n for n, s in zip(nodes, width.seconds, strict=True) if s is not None and n.gpus < width.gpus), None)
        if tight:
            wrong.append(f"seconds says it fits {tight.id}, but {width.gpus} GPUs are more than its {tight.gpus}")
    return wrong
