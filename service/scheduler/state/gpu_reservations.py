"""Reserved GPUs: those taken back for a task are nobody else's while their holders leave, and then that task starts on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.fleet.models import Placement
from service.scheduler.core.problem import Node, Queued, Running, Start

_LAPSES = timedelta(seconds=120)  # after the last holder left


@dataclass(frozen=True)
class GpuReservation:
    """GPUs of a node for a task, once these have left it."""

    task: str
    node: str
    leaving: frozenset[str]


@dataclass(frozen=True)
class Kept:
    """The problem's tasks with the promises among the running ones: `due` start now, `awaited` wait for who leaves."""

    running: tuple[Running, ...]
    queued: tuple[Queued, ...]
    due: tuple[Start, ...]
    awaited: dict[str, GpuReservation]


def reservations_of(session: Session, now: datetime) -> list[GpuReservation]:
    """What was promised and has not lapsed."""
    standing = or_(Placement.ended_at.is_(None), Placement.ended_at > now - _LAPSES)
    rows = session.scalars(select(Placement).where(Placement.promised_to.is_not(None), standing).order_by(Placement.id))
    found: dict[str, GpuReservation] = {}
    for placed in rows:
        leaving = frozenset({placed.task_id} if placed.ended_at is None else ())
        before = found.get(placed.promised_to or "")
        leaving |= before.leaving if before is not None and before.node == placed.node_id else frozenset()
        found[placed.promised_to or ""] = GpuReservation(placed.promised_to or "", placed.node_id, leaving)
    return list(found.values())


def kept(
    promised: Sequence[GpuReservation], nodes: Sequence[Node], running: Sequence[Running], queued: Sequence[Queued]
) -> Kept:
    """Take each promised task out of the queue, and hold for it what is free on its node and what its leavers give back."""
    waiting = {task.id: task for task in queued}
    runs, due, awaited = list(running), list[Start](), dict[str, GpuReservation]()
    for promise in {promise.task: promise for promise in promised}.values():
        task, at = waiting.get(promise.task), next((at for at, node in enumerate(nodes) if node.id == promise.node), None)
        if task is None or at is None or nodes[at].drained or task.seconds[at] is None:
            continue
        seconds = task.seconds[at] or 1
        free = nodes[at].gpus - sum(run.gpus for run in runs if run.node == promise.node)
        if free >= task.gpus:
            due.append(Start(task.id, promise.node, 0, seconds, task.gpus))
            runs.append(Running(task.id, promise.node, task.gpus, seconds, task.tenant))
        else:
            leavers = {run.id: run for run in runs if run.id in promise.leaving and run.node == promise.node}
            if free + sum(run.gpus for run in leavers.values()) < task.gpus:
                continue  # somebody else got there first
            runs = _given(runs, leavers, task.gpus - free)
            longest = max(run.remaining for run in leavers.values())
            runs.append(Running(task.id, promise.node, task.gpus, longest + seconds, task.tenant))
            awaited[task.id] = promise
        del waiting[task.id]
    return Kept(tuple(runs), tuple(waiting.values()), tuple(due), awaited)


def _given(runs: Sequence[Running], leavers: Mapping[str, Running], gpus: int) -> list[Running]:
    """The runs without `gpus` GPUs of those that leave; whoever holds more keeps the rest until it has left."""
    left: list[Running] = []
    for run in runs:
        taken = min(gpus, run.gpus) if run.id in leavers else 0
        gpus -= taken
        if run.gpus > taken:
            left.append(replace(run, gpus=run.gpus - taken))
    return left
