"""Reclaims GPUs from running tasks for a tenant that is owed them.

owed_gpus.py decides; this module asks each victim to leave, in a transaction that checks again under the task's lock.
"""

import logging
from collections import Counter, defaultdict
from dataclasses import replace

from contract.states import RequeueReason
from service.dependencies import Dependencies
from service.scheduler.core.fair_share import owed
from service.scheduler.core.preemption.owed_gpus import Held, Preemption, Preemptor, preemption
from service.scheduler.core.problem import NEVER
from service.scheduler.state import planner_lease
from service.scheduler.state.executors import executor_of, grouped
from service.scheduler.state.preemption.gpu_reservations import GpuReservation
from service.scheduler.state.snapshot import Snapshot
from service.tasks.lifecycle.placements import ask_to_leave, lock_staying

log = logging.getLogger(__name__)


def reclaim(dependencies: Dependencies, token: str, seen: Snapshot) -> GpuReservation | None:
    """Ask placements to leave for a tenant that is owed their GPUs. Returns the reservation for that tenant's task.

    None if there is nothing to reclaim. Raises LeaseLost.
    """
    found = due(seen, dependencies.settings.preempt_after_seconds)
    if found is None:
        return None
    victims = [one for victim in found.victims for one in _sharers(seen, victim)]
    asked = {victim.task for victim in victims if _ask(dependencies, token, seen, found, victim)}
    return GpuReservation(found.preemptor.task, found.node, frozenset(asked)) if asked or not found.victims else None


def due(seen: Snapshot, bound: float) -> Preemption | None:
    """The preemption that is due now, if any."""
    if sum(share.active for share in seen.shares) < 2:
        return None
    held = _held(seen)
    known = {one.task for one in held}
    taken = Counter[str]()  # by leaving tasks and by reservations
    for run in seen.problem.running:
        if run.id not in known:
            taken[run.node] += run.gpus
    nodes = [replace(node, gpus=max(0, node.gpus - taken[node.id])) for node in seen.problem.nodes]
    return preemption(_preemptors(seen), held, nodes, owed(seen.shares, seen.capacity), bound)


def _held(seen: Snapshot) -> list[Held]:
    """What may be taken back: executors, each with all who share it, named after the first who came."""
    open_ = [node for node in seen.nodes.values() if node.id not in seen.closed]
    found = []
    for (node_id, devices), there in grouped(seen.placements.values()).items():
        if any(placed.leaving is not None for placed in there):
            continue
        tasks = [seen.tasks[placed.task_id] for placed in there]
        found.append(
            Held(
                tasks[0].id,
                tasks[0].tenant_id,
                node_id,
                len(devices),
                max(task.priority for task in tasks),
                (seen.at - there[0].created_at).total_seconds(),
                frozenset(node.id for node in open_ if all(seen.work.fits(task, node) for task in tasks)),
                max(0, len(devices) - tasks[0].gpus) if len(there) == 1 else 0,
            )
        )
    return found


def _sharers(seen: Snapshot, victim: Held) -> list[Held]:
    """The victim, and each who shares its executor."""
    first = executor_of(seen.placements[victim.task])
    there = grouped(seen.placements.values())[first]
    return [replace(victim, task=one.task_id, tenant=seen.tasks[one.task_id].tenant_id) for one in there]


def _preemptors(seen: Snapshot) -> list[Preemptor]:
    """Waiting tasks within their quota, of tenants without a reservation."""
    limits = {limit.tenant: limit.units for limit in seen.problem.limits}
    holds, units = Counter[str](), seen.problem.units
    for run in seen.problem.running:
        for tenant in {run.tenant, *(member.tenant for member in run.members)}:
            holds[tenant] += run.units_of(tenant, units[run.node])
    reserved = {seen.tasks[task].tenant_id for task in (*seen.awaited, *(start.task for start in seen.reserved))}
    preemptors = []
    for queued in seen.problem.queued:
        left = limits.get(queued.tenant, NEVER) - holds[queued.tenant]
        fits = frozenset(
            node.id
            for node, seconds in zip(seen.problem.nodes, queued.seconds, strict=True)
            if seconds is not None and not node.drained and queued.gpus * node.units <= left
        )
        if fits and queued.tenant not in reserved:
            preemptors.append(Preemptor(queued.id, queued.tenant, queued.gpus, seen.waited[queued.id], fits))
    return preemptors


def _ask(dependencies: Dependencies, token: str, seen: Snapshot, found: Preemption, victim: Held) -> bool:
    placed = seen.placements[victim.task]
    with dependencies.db.begin() as session:
        planner_lease.hold_lease(session, token)
        locked = lock_staying(session, placed.id)
        if locked is None:
            return False
        task, placement = locked
        placement.promised_to = found.preemptor.task
        log.info("task %s is preempted: %s", task.id, found.sentence)
        ask_to_leave(session, dependencies, task, placement, RequeueReason.PREEMPTED, preemption_notice(seen, found, victim))
        return True


def preemption_notice(seen: Snapshot, found: Preemption, victim: Held) -> str:
    """Message for the victim's owner; names the preempting task only if it is the owner's."""
    preemptor = found.preemptor
    if preemptor.tenant == victim.tenant:
        needs = f"which needs {preemptor.gpus} GPUs of one node"
        return f"It makes room for {preemptor.task}, {needs}; it goes on from its checkpoint."
    worth = {node.id: node.worth for node in seen.problem.nodes}
    rights, holds = owed(seen.shares, seen.capacity), defaultdict[str, float](float)
    for one in _held(seen):
        holds[one.tenant] += one.gpus * worth[one.node]
    counted = " (of the fastest type; others count by what they can do)" if set(worth.values()) != {1.0} else ""
    return (
        f"Preempted for another tenant's task, which needs {preemptor.gpus} GPUs and waited {preemptor.waited:.0f} s: your "
        f"tenant held {holds[victim.tenant]:.4g} GPUs of the {rights.get(victim.tenant, 0.0):.3g} it is owed{counted}, "
        f"that one {holds[preemptor.tenant]:.4g} of {rights.get(preemptor.tenant, 0.0):.3g}. It goes on from its checkpoint."
    )
