"""Executors, from rows: which live placements share devices, with what slowdown, and what the plan sees of each.

Placements of the same devices are one executor; its GPUs count once. Decides nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from service.fleet.models import Placement
from service.scheduler.core import problem as p
from service.scheduler.core.joins.slowdowns import MOST_CORRECTION, Member, Sharing, correction_by, ends
from service.tasks.models import Task


@dataclass(frozen=True)
class LiveTask:
    """A live placement's task. `alone`: seconds that it would still take alone; `sharing` is None where nobody may join it, and
    where this version cannot tell; `weight` of a second of its completion; `gpus` that it would run on alone; `deadline` in
    seconds."""

    placed: Placement
    task: Task
    alone: int
    sharing: Sharing | None
    weight: int = 1
    gpus: int = 1
    deadline: int | None = None


Executor = tuple[str, tuple[int, ...]]  # node and devices


def executor_of(placed: Placement) -> Executor:
    return placed.node_id, tuple(sorted(placed.device_indexes))


def grouped(placements: Iterable[Placement]) -> dict[Executor, list[Placement]]:
    """The placements of each executor, oldest first."""
    found: dict[Executor, list[Placement]] = defaultdict(list)
    for placed in sorted(placements, key=lambda one: (one.created_at, one.id)):
        found[executor_of(placed)].append(placed)
    return found


def running_of(live: Sequence[LiveTask], joinable: Collection[str]) -> tuple[p.RunningExecutor, ...]:
    """What runs, an executor each. Nobody joins one on a node that is not `joinable`, nor one whose tasks leave or may not
    share."""
    by_id = {one.placed.id: one for one in live}
    found = []
    for (node, devices), placements in grouped(one.placed for one in live).items():
        there = [by_id[placed.id] for placed in placements]
        members = tuple(
            Member(one.task.id, one.task.tenant_id, one.alone, one.sharing, one.weight, one.gpus, one.deadline)
            for one in there
            if one.sharing is not None and one.placed.leaving is None
        )
        may = len(members) == len(there) and node in joinable and len({one.sharing.group for one in members}) == 1
        correction = corrected(there, members, len(devices)) if may else 1.0
        last = max(ends(members, len(devices), correction).values()) if may else max(one.alone for one in there)
        first = there[0].task
        kept = members if may else ()
        sharers = () if may or len(there) < 2 else tuple((one.task.tenant_id, one.gpus) for one in there)
        run = p.RunningExecutor(first.id, node, len(devices), last, first.tenant_id, kept, correction, sharers=sharers)
        found.append(run)
    return tuple(found)


def corrected(there: Sequence[LiveTask], members: Sequence[Member], gpus: int) -> float:
    """With which their predicted slowdowns are the measured ones, on average; or as it was when a bound was broken there; 1
    where it is less, or not measured."""
    found = [
        correction_by(members, gpus, one.task.id, one.placed.current_slowdown)
        for one in there
        if one.placed.current_slowdown is not None and len(there) > 1
    ]
    known = [one.placed.correction for one in there if one.placed.correction is not None]
    return min(MOST_CORRECTION, max(1.0, *known, fmean(found) if found else 1.0))


@dataclass(frozen=True)
class Shared:
    """A task's end in seconds beside `others` on its executor."""

    end: int
    others: int


def ends_of(runs: Iterable[p.RunningExecutor]) -> dict[str, Shared]:
    """By task, of those executors that may be joined: the end beside those who share it, and how many others do."""
    return {
        id: Shared(end, len(run.members) - 1)
        for run in runs
        if run.members
        for id, end in ends(run.members, run.gpus, run.correction).items()
    }


def each_of(live: Sequence[LiveTask], runs: Sequence[p.RunningExecutor]) -> tuple[p.RunningExecutor, ...]:
    """The running tasks one by one, each with its own end."""
    known = ends_of(runs)
    return tuple(
        p.RunningExecutor(
            one.task.id,
            one.placed.node_id,
            len(one.placed.device_indexes),
            known[one.task.id].end if one.task.id in known else one.alone,
            one.task.tenant_id,
        )
        for one in live
    )
