"""Checks that a problem is well-formed; each message names the field. Values only."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.problem import NEVER, Problem, Queued, row_of


def malformed(problem: Problem) -> list[str]:
    """What makes the problem malformed, in messages that name the field."""
    wrong = []
    for what, ids in (
        ("nodes", [node.id for node in problem.nodes]),
        ("running and queued", [*(task.id for task in problem.running), *(task.id for task in problem.queued)]),
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
    for task in problem.queued:
        wrong += [f"queued {task.id}: {why}" for why in _malformed_task(task, len(problem.nodes))]
    many = len(problem.nodes)
    sized = [t for t in problem.queued if len(t.seconds) == many and all(len(width.seconds) == many for width in t.wider)]
    return wrong + _unfit(problem if len(sized) == len(problem.queued) else replace(problem, queued=tuple(sized)))


def _malformed_task(task: Queued, nodes: int) -> list[str]:
    wrong = [] if task.weight >= 1 else [f"weight is {task.weight}, must be positive"]
    gpus = [width.gpus for width in task.widths] if task.wider else [task.gpus]
    if gpus[0] < 1 or any(wider <= before for before, wider in pairwise(gpus)):
        wrong.append(f"widths are {gpus}, must be positive and rise")
    for seconds in (task.seconds, *(width.seconds for width in task.wider)):
        if len(seconds) != nodes:
            wrong.append(f"seconds names {len(seconds)} nodes, there are {nodes}")
    return wrong


def _unfit(problem: Problem) -> list[str]:
    """Durations that are not positive, and durations on nodes that are too small."""
    sizes = np.array([node.gpus for node in problem.nodes], np.int64)
    wrong = []
    for task, seconds, gpus in _widths(problem):
        if seconds.min(initial=1) < 1:
            wrong.append(f"queued {task}: seconds must be positive, or None where it does not fit")
        small = sizes[(seconds < NEVER) & (sizes < gpus)]
        if len(small):
            wrong.append(f"queued {task}: seconds says it fits a node of {small[0]} GPUs, but it takes {gpus}")
    return wrong


def _widths(problem: Problem) -> Iterator[tuple[str, NDArray[np.int64], int]]:
    """(task, seconds by node, GPUs) of every width to check."""
    smallest = min((node.gpus for node in problem.nodes), default=1)
    least = problem.seconds.min(axis=1, initial=NEVER)
    asked = np.array([task.gpus for task in problem.queued], np.int64)
    for at in np.flatnonzero((least < 1) | (asked > smallest)):
        yield problem.queued[at].id, problem.seconds[at], int(asked[at])
    for task in problem.queued:
        for width in task.wider:
            row = row_of(width.seconds)
            if isinstance(row, list) or row < 1 or (row < NEVER and width.gpus > smallest):
                yield task.id, np.broadcast_to(np.array(row, np.int64), len(problem.nodes)), width.gpus
