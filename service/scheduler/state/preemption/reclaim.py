"""Reclaims GPUs from running tasks for a tenant that is owed them.

owed_gpus.py decides; this module asks each victim to leave.
"""

from collections import Counter, defaultdict
from dataclasses import replace

from contract.gpu_counts import device_word, devices
from service.dependencies import Dependencies
from service.scheduler.core.fair_share import owed
from service.scheduler.core.preemption.owed_gpus import Held, Preemption, Preemptor, preemption
from service.scheduler.core.problem import NEVER
from service.scheduler.estimate.base_fit import BaseFit
from service.scheduler.estimate.node_shapes import Shape, shape_of
from service.scheduler.explain.waiting_sentences import task_words
from service.scheduler.state.executors import executor_of
from service.scheduler.state.preemption.gpu_reservations import GpuReservation
from service.scheduler.state.preemption.leaving import leave_for
from service.scheduler.state.snapshot import Snapshot


def reclaim(dependencies: Dependencies, token: str, seen: Snapshot) -> GpuReservation | None:
    """Ask placements to leave for a tenant that is owed their GPUs. Returns the reservation for that tenant's task.

    None if there is nothing to reclaim. Raises LeaseLost.
    """
    found = due(seen, dependencies.settings.preempt_after_seconds)
    if found is None:
        return None
    victims = [one for victim in found.victims for one in _sharers(seen, victim)]
    task, why = found.preemptor.task, found.sentence
    asked = {
        victim.task
        for victim in victims
        if leave_for(dependencies, token, seen.placements[victim.task].id, task, why, preemption_notice(seen, found, victim))
    }
    return GpuReservation(task, found.node, frozenset(asked)) if asked or not found.victims else None


def due(seen: Snapshot, bound: float) -> Preemption | None:
    """The preemption that is due now, if any."""
    if sum(share.active for share in seen.shares) < 2 or max(seen.waited.values(), default=0.0) < bound:
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
    """What may be taken back: executors, each with all who share it, named after the first. None that a task of another
    version is on: it stays, and so would the GPUs."""
    open_: dict[Shape, list[str]] = defaultdict(list)
    for node in seen.nodes.values():
        if node.id not in seen.closed:
            open_[shape_of(node)].append(node.id)
    found, alike = [], dict[tuple[Shape, ...], frozenset[str]]()
    for (node_id, indexes), there in seen.executors.items():
        if any(placed.leaving is not None or placed.task_id in seen.left_alone for placed in there):
            continue
        tasks = [seen.tasks[placed.task_id] for placed in there]
        alone, wide = len(there) == 1, len(indexes)
        most = NEVER if alone else wide  # sharers move together, at the width of their executor
        fit = tuple(shape for shape in open_ if all(_fits(seen.work.fit(task), shape, most) for task in tasks))
        if fit not in alike:
            alike[fit] = frozenset(id for shape in fit for id in open_[shape])
        least = seen.work.narrowest_running(tasks[0], shape_of(seen.nodes[node_id]), wide) if alone else wide
        others = {shape: seen.work.narrowest(tasks[0], shape) for shape in fit} if alone else {}
        found.append(
            Held(
                tasks[0].id,
                tasks[0].tenant_id,
                node_id,
                wide,
                max(task.priority for task in tasks),
                (seen.at - there[0].created_at).total_seconds(),
                alike[fit],
                wide - least,
                tuple((id, gpus) for shape, gpus in others.items() if gpus != least for id in open_[shape]),
            )
        )
    return found


def _fits(fit: BaseFit, shape: Shape, most: int) -> bool:
    """Whether the task fits such a node on at most `most` GPUs."""
    gpus = fit.narrowest(shape)
    return gpus is not None and gpus <= most


def _sharers(seen: Snapshot, victim: Held) -> list[Held]:
    """The victim, and each who shares its executor."""
    there = seen.executors[executor_of(seen.placements[victim.task])]
    return [replace(victim, task=one.task_id, tenant=seen.tasks[one.task_id].tenant_id) for one in there]


def _preemptors(seen: Snapshot) -> list[Preemptor]:
    """Waiting tasks within their quota, of tenants without a reservation."""
    limits = {limit.tenant: limit.units for limit in seen.problem.limits}
    holds, units = Counter[str](), seen.problem.units
    for run in seen.problem.running:
        for tenant in run.tenants:
            holds[tenant] += run.units_of(tenant, units[run.node])
    reserved = {seen.tasks[task].tenant_id for task in (*seen.awaited, *(start.task for start in seen.reserved))}
    preemptors = []
    for queued in seen.problem.queued:
        left = limits.get(queued.tenant, NEVER) - holds[queued.tenant]
        fits = frozenset(
            node.id
            for at, (node, seconds) in enumerate(zip(seen.problem.nodes, queued.seconds, strict=True))
            if seconds is not None and not node.drained and queued.on(at) * node.units <= left
        )
        if fits and queued.tenant not in reserved:
            places = seen.problem.places
            needs = tuple((id, queued.on(places[id])) for id in sorted(fits)) if queued.needs else ()
            preemptors.append(Preemptor(queued.id, queued.tenant, queued.gpus, seen.waited[queued.id], fits, needs))
    return preemptors


def preemption_notice(seen: Snapshot, found: Preemption, victim: Held) -> str:
    """Message for the victim's owner; names the preempting task only if it is the owner's."""
    preemptor, word = found.preemptor, device_word(node.device_type for node in seen.nodes.values())
    needs = f"which needs {devices(preemptor.on(found.node), word)}"
    if preemptor.tenant == victim.tenant:
        whom = task_words(seen.tasks[preemptor.task].name, preemptor.task)
        return f"It makes room for {whom}, {needs} of one node; it goes on from its checkpoint."
    worth = {node.id: node.worth for node in seen.problem.nodes}
    rights, holds = owed(seen.shares, seen.capacity), defaultdict[str, float](float)
    for one in _held(seen):
        holds[one.tenant] += one.gpus * worth[one.node]
    counted = " (of the fastest type; others count by what they can do)" if set(worth.values()) != {1.0} else ""
    held = devices(float(f"{holds[victim.tenant]:.4g}"), word)
    return (
        f"Preempted for another tenant's task, {needs} and waited {preemptor.waited:.0f} s: your "
        f"tenant held {held} of the {rights.get(victim.tenant, 0.0):.3g} it is owed{counted}, "
        f"that one {holds[preemptor.tenant]:.4g} of {rights.get(preemptor.tenant, 0.0):.3g}. It goes on from its checkpoint."
    )
