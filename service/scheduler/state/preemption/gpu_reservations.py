"""GPU reservations: reclaimed GPUs stay reserved for one task while their holders leave; then that task starts on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, aliased

from service.fleet.models import Placement
from service.scheduler.core.problem import NEVER, Limit, PlanNode, Queued, RunningExecutor, Start

_LAPSES = timedelta(seconds=120)  # after the last holder left


@dataclass(frozen=True)
class GpuReservation:
    """GPUs of a node reserved for a task; `leaving` are the tasks that still have to leave them."""

    task: str
    node: str
    leaving: frozenset[str]


@dataclass(frozen=True)
class ReservedStarts:
    """The problem's tasks with reservations as running ones: `due` start now, `awaited` wait for tasks to leave."""

    running: tuple[RunningExecutor, ...]
    queued: tuple[Queued, ...]
    due: tuple[Start, ...]
    awaited: dict[str, GpuReservation]


def reservations_of(session: Session, now: datetime) -> list[GpuReservation]:
    """The reservations that have not lapsed. One is spent once its task has run there and was asked to leave in turn: held on
    to, the GPUs would go back to it, and never to the task that it left for."""
    standing, own = or_(Placement.ended_at.is_(None), Placement.ended_at > now - _LAPSES), aliased(Placement)
    since = own.task_id == Placement.promised_to, own.created_at >= Placement.ended_at
    spent = select(own.id).where(*since, own.leaving.is_not(None)).exists()
    promised = select(Placement).where(Placement.promised_to.is_not(None), standing, ~spent)
    rows = session.scalars(promised.order_by(Placement.id))
    found: dict[str, GpuReservation] = {}
    for placed in rows:
        leaving = frozenset({placed.task_id} if placed.ended_at is None else ())
        before = found.get(placed.promised_to or "")
        leaving |= before.leaving if before is not None and before.node == placed.node_id else frozenset()
        found[placed.promised_to or ""] = GpuReservation(placed.promised_to or "", placed.node_id, leaving)
    return list(found.values())


def kept(
    reserved: Sequence[GpuReservation],
    nodes: Sequence[PlanNode],
    running: Sequence[RunningExecutor],
    queued: Sequence[Queued],
    limits: Sequence[Limit] = (),
) -> ReservedStarts:
    """Take tasks with a reservation out of the queue; hold for each its node's free GPUs, and those of leaving tasks. A task
    beyond its tenant's limit, which may have been lowered since, stays in the queue."""
    waiting, most = {task.id: task for task in queued}, {limit.tenant: limit.units for limit in limits}
    units = {node.id: node.units for node in nodes}
    runs, due, awaited = list(running), list[Start](), dict[str, GpuReservation]()
    for reservation in {reservation.task: reservation for reservation in reserved}.values():
        task, at = (
            waiting.get(reservation.task),
            next((at for at, node in enumerate(nodes) if node.id == reservation.node), None),
        )
        if task is None or at is None or nodes[at].drained or task.seconds[at] is None:
            continue
        seconds, gpus = task.seconds[at] or 1, task.on(at)
        held = sum(run.units_of(task.tenant, units[run.node]) for run in runs)
        if held + gpus * nodes[at].units > most.get(task.tenant, NEVER):
            continue
        free = nodes[at].gpus - sum(run.gpus for run in runs if run.node == reservation.node)
        if free >= gpus:
            due.append(Start(task.id, reservation.node, 0, seconds, gpus))
            runs.append(RunningExecutor(task.id, reservation.node, gpus, seconds, task.tenant))
        else:
            leavers = {run.id: run for run in runs if run.id in reservation.leaving and run.node == reservation.node}
            if free + sum(run.gpus for run in leavers.values()) < gpus:
                continue  # another task took the GPUs first
            runs = _given(runs, leavers, gpus - free)
            longest = max(run.remaining for run in leavers.values())
            runs.append(RunningExecutor(task.id, reservation.node, gpus, longest + seconds, task.tenant))
            awaited[task.id] = reservation
        del waiting[task.id]
    return ReservedStarts(tuple(runs), tuple(waiting.values()), tuple(due), awaited)


def _given(runs: Sequence[RunningExecutor], leavers: Mapping[str, RunningExecutor], gpus: int) -> list[RunningExecutor]:
    """The runs without `gpus` GPUs of leaving tasks; a task that holds more keeps the rest until it has left."""
    left: list[RunningExecutor] = []
    for run in runs:
        taken = min(gpus, run.gpus) if run.id in leavers else 0
        gpus -= taken
        if run.gpus > taken:
            left.append(replace(run, gpus=run.gpus - taken))
    return left
