"""Checks that a problem is well-formed; each message names the field. Values only."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.joins.slowdowns import Sharing
from service.scheduler.core.problem import NEVER, Queued, RunningExecutor, SchedulingProblem, row_of


def malformed(problem: SchedulingProblem) -> list[str]:
    """What makes the problem malformed, in messages that name the field."""
    wrong = []
    for what, ids in (
        ("nodes", [node.id for node in problem.nodes]),
        ("running and queued", [*_running_ids(problem), *(task.id for task in problem.queued)]),
        ("limits", [limit.tenant for limit in problem.limits]),
    ):
        if len(set(ids)) != len(ids):
            wrong.append(f"{what}: {next(name for name in ids if ids.count(name) > 1)} stands there twice")
    names = {node.id for node in problem.nodes}
    wrong += [f"node {node.id}: gpus is {node.gpus}, must be positive" for node in problem.nodes if node.gpus < 1]
    wrong += [f"node {node.id}: worth is {node.worth}, must be positive" for node in problem.nodes if not node.worth > 0]
    wrong += [
        f"limit of {limit.tenant}: gpus is {limit.gpus}, must not be negative" for limit in problem.limits if limit.gpus < 0
    ]
    for run in problem.running:
        if run.node not in names or run.gpus < 1 or run.remaining < 1:
            wrong.append(f"running {run.id}: {run.gpus} GPUs of node {run.node} for {run.remaining} s is not possible")
        wrong += [f"running {run.id}: {why}" for why in _malformed_members(run)]
    for task in problem.queued:
        wrong += [f"queued {task.id}: {why}" for why in _malformed_task(task, len(problem.nodes))]
    many = len(problem.nodes)
    sized = tuple(task for task in problem.queued if _sized(task, many))
    return wrong + _unfit(problem if len(sized) == len(problem.queued) else replace(problem, queued=sized))


def _sized(task: Queued, nodes: int) -> bool:
    return len(task.needs or task.seconds) == nodes and all(len(width.seconds) == nodes for width in task.widths)


def _running_ids(problem: SchedulingProblem) -> Iterator[str]:
    for run in problem.running:
        yield run.id
        yield from (member.id for member in run.members[1:])


def _malformed_members(run: RunningExecutor) -> Iterator[str]:
    if run.members and (run.members[0].id, run.members[0].tenant) != (run.id, run.tenant):
        yield f"its first member is {run.members[0].id} of {run.members[0].tenant}, must be itself"
    if len({member.sharing.group for member in run.members}) > 1:
        yield "its members are of several groups"
    for member in run.members:
        if member.remaining < 1 or member.weight < 1 or not 1 <= member.gpus <= run.gpus:
            yield (
                f"member {member.id}: remaining {member.remaining} and weight {member.weight} must be positive, and "
                f"gpus {member.gpus} from 1 to the executor's {run.gpus}"
            )
        yield from (f"member {member.id}: {why}" for why in _malformed_sharing(member.sharing))
    if run.correction < 1:
        yield f"correction is {run.correction}, must be at least 1"


def _malformed_sharing(sharing: Sharing) -> Iterator[str]:
    if not 0 <= sharing.overhead < 1:
        yield f"overhead is {sharing.overhead}, must lie in [0, 1)"
    if sharing.room < 0 or sharing.bound < 1 or not sharing.weight > 0:
        yield f"room {sharing.room}, bound {sharing.bound} and weight {sharing.weight} must be at least 0, 1 and above 0"


def _malformed_task(task: Queued, nodes: int) -> list[str]:
    wrong = [] if task.weight >= 1 else [f"weight is {task.weight}, must be positive"]
    gpus = [width.gpus for width in task.widths] if task.wider else [task.gpus]
    if gpus[0] < 1 or any(wider <= before for before, wider in pairwise(gpus)):
        wrong.append(f"widths are {gpus}, must be positive and rise")
    if task.needs and (len(task.needs) != nodes or min(task.needs) < task.gpus):
        wrong.append(f"needs is {task.needs}, must name the GPUs on each of {nodes} nodes, at least {task.gpus}")
    for seconds in (task.seconds, *(width.seconds for width in task.wider)):
        if len(seconds) != nodes:
            wrong.append(f"seconds names {len(seconds)} nodes, there are {nodes}")
    for width in task.wider if task.needs else ():
        if any(spent is not None and width.gpus <= need for spent, need in zip(width.seconds, task.needs, strict=False)):
            wrong.append(f"a width of {width.gpus} is offered on a node of which it needs as many or more")
    if task.sharing and len(task.sharing) != nodes:
        wrong.append(f"sharing names {len(task.sharing)} nodes, there are {nodes}")
    alike = bool(task.sharing) and task.sharing.count(task.sharing[0]) == len(task.sharing)
    for sharing in task.sharing[:1] if alike else set(task.sharing):
        wrong += _malformed_sharing(sharing) if sharing is not None else ()
    return wrong


def _unfit(problem: SchedulingProblem) -> list[str]:
    """Durations that are not positive, and durations on nodes that are too small."""
    sizes = np.array([node.gpus for node in problem.nodes], np.int64)
    wrong = []
    for task, seconds, gpus in _widths(problem):
        if seconds.min(initial=1) < 1:
            wrong.append(f"queued {task}: seconds must be positive, or None where it does not fit")
        small = np.flatnonzero((seconds < NEVER) & (sizes < gpus))
        if len(small):
            takes = gpus if isinstance(gpus, int) else gpus[small[0]]
            wrong.append(f"queued {task}: seconds says it fits a node of {sizes[small[0]]} GPUs, but it takes {takes}")
    return wrong


def _widths(problem: SchedulingProblem) -> Iterator[tuple[str, NDArray[np.int64], int | NDArray[np.int64]]]:
    """(task, seconds by node, GPUs or these by node) of every width to check."""
    smallest = min((node.gpus for node in problem.nodes), default=1)
    least = problem.seconds.min(axis=1, initial=NEVER)
    asked = problem.asked.max(axis=1, initial=0)
    for at in np.flatnonzero((least < 1) | (asked > smallest)):
        yield problem.queued[at].id, problem.seconds[at], problem.queued[at].least
    for task in problem.queued:
        for width in task.wider:
            row = row_of(width.seconds)
            if isinstance(row, list) or row < 1 or (row < NEVER and width.gpus > smallest):
                yield task.id, np.broadcast_to(np.array(row, np.int64), len(problem.nodes)), width.gpus
