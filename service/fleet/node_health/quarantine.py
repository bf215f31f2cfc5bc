"""A circuit breaker for nodes: counts losses of nodes and tasks; decides on rests, quarantines, and tasks that fail.

A quarantined node takes nothing until its rest is over, then one task at a time (half-open); a checkpoint or the end of a job
there closes the breaker, one more loss opens it for twice as long. node_faults.py decides whose fault a loss is. Callers hold
the locks of `lock_placement`; the node's row is locked after them.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.states import RequeueReason
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.models import NODE_LOCK, Node, Placement
from service.fleet.node_health.node_faults import IN_A_ROW, Fault, Witness, at_fault, node_rest, suspect, task_rest
from service.messaging.plan_requests import request_plan
from service.settings import Settings
from service.tasks.lifecycle.placements import release_placement
from service.tasks.models import Task

_REMEMBERED = 50  # losses in a row

log = logging.getLogger(__name__)


class ExecutorLoss(Enum):
    """How a placement was lost."""

    EXECUTOR = "executor"  # its executor died or stalled: the node's or the task's fault
    BESIDE = "beside"  # the same, where another placement of that executor counted the node's loss
    BESIDE_SUSPECT = "beside a suspect"  # the same, where that of a suspect (node_faults.py) did not: evidence against nobody
    UNTAKEN = "untaken"  # no executor ever took it, or the node's disk failed it: the node's fault
    UNTAKEN_BESIDE = "untaken beside"  # the same, where another placement counted the node's loss
    NODE = "node"  # the node disappeared or rebooted with it
    REFUSED = "refused"  # the node could not read it: a matter of its version


_FAULTS = TypeAdapter(dict[str, Fault])
_CRASHES = ExecutorLoss.EXECUTOR, ExecutorLoss.BESIDE, ExecutorLoss.BESIDE_SUSPECT
# How those beside the first one were lost: where it is a suspect's, and where it counted against the node.
_FIRST: dict[ExecutorLoss, tuple[ExecutorLoss | None, ExecutorLoss]] = {
    ExecutorLoss.EXECUTOR: (ExecutorLoss.BESIDE_SUSPECT, ExecutorLoss.BESIDE),
    ExecutorLoss.UNTAKEN: (None, ExecutorLoss.UNTAKEN_BESIDE),
    ExecutorLoss.NODE: (ExecutorLoss.NODE, ExecutorLoss.NODE),
}


def faults_of(task: Task) -> dict[str, Fault]:
    """The task's faults, by node id; none where they cannot be read: no plan starts it, and what comes next is written anew."""
    return read_faults(task) or {}


FAULTS_UNREADABLE = (
    "The stored record of which nodes lost this task (tasks.faults) cannot be read, so no node is chosen for it. An operator "
    "clears it; or cancel the task and submit it again."
)


def read_faults(task: Task) -> dict[str, Fault] | None:
    """The same; None where they cannot be read."""
    try:
        return _FAULTS.validate_python(task.faults or {})
    except ValidationError:
        return None


def release_lost(
    session: Session,
    dependencies: Dependencies,
    task: Task,
    placement: Placement,
    reason: RequeueReason,
    detail: str,
    loss: ExecutorLoss | None,
) -> ExecutorLoss | None:
    """Take a running task off a node that lost its placement (`release_placement`), and count the loss against node or task.

    Returns how the placements were lost that were lost with it; None: it counts for nothing, as that of a placement that was
    asked to leave, so that the next one is the first.
    """
    if loss is None or placement.leaving is not None:
        release_placement(session, dependencies, task, placement, reason, detail, None)
        return None
    hopeless, beside = _note_loss(session, dependencies, task, placement, loss, detail)
    release_placement(session, dependencies, task, placement, reason, detail, hopeless)
    return beside


def _note_loss(
    session: Session, dependencies: Dependencies, task: Task, placement: Placement, loss: ExecutorLoss, detail: str
) -> tuple[str | None, ExecutorLoss | None]:
    """Count the loss of a live placement. Returns why the task must fail, if it is clear by now that it crashes executors, and
    how those beside it were lost."""
    now, unit = clock(session), dependencies.settings.quarantine_seconds
    node = _locked(session, placement.node_id)
    faults = faults_of(task)
    fault = _after(faults.get(node.id, Fault()), loss, node, now, detail)
    if loss in _CRASHES:
        task.lost_executors += 1
    if loss in (ExecutorLoss.EXECUTOR, ExecutorLoss.BESIDE):
        places = {*fault.devices, tuple(sorted(placement.device_indexes))}
        fault = fault.model_copy(update={"devices": tuple(sorted(places))})
    if loss is ExecutorLoss.EXECUTOR:
        counts = {str(index): node.device_losses.get(str(index), 0) + 1 for index in placement.device_indexes}
        node.device_losses = node.device_losses | counts
    if fault.losses or loss in (ExecutorLoss.UNTAKEN, ExecutorLoss.UNTAKEN_BESIDE):
        fault = fault.model_copy(update={"rest_until": now + timedelta(seconds=task_rest(fault, unit))})
    faults[node.id] = fault
    task.faults = {name: one.model_dump(mode="json") for name, one in faults.items()}
    task.retry_at = min((f.rest_until for f in faults.values() if f.rest_until and f.rest_until > now), default=None)
    witnesses = _witnesses(session, faults)
    beside: ExecutorLoss | None = loss
    if loss in (ExecutorLoss.BESIDE, ExecutorLoss.UNTAKEN_BESIDE):
        _blame_too(node, task.id)
    elif loss in _FIRST:
        of_suspect, beside = _FIRST[loss]
        if suspect(task.id, faults, witnesses, node.id):
            beside = of_suspect
        else:
            _count(node, task.id, now, unit, detail)
    witnesses[node.id] = witness_of(node)
    if loss not in (ExecutorLoss.EXECUTOR, ExecutorLoss.BESIDE) or not at_fault(task.id, faults, witnesses):
        return None, beside
    lost = [one.losses for one in faults.values() if one.losses]
    where = "on one node, which trains other tasks" if len(lost) == 1 else f"on {len(lost)} nodes"
    return (
        f"{sum(lost)} executors in a row were lost while they trained this task, {where}, and none reached a checkpoint; "
        f"the last one: {detail or 'it stopped without a word'}"
    ), beside


def _locked(session: Session, node_id: str) -> Node:
    fresh = select(Node).where(Node.id == node_id).with_for_update(**NODE_LOCK).execution_options(populate_existing=True)
    return session.scalars(fresh).one()


def _after(fault: Fault, loss: ExecutorLoss, node: Node, now: datetime, detail: str) -> Fault:
    match loss:
        case ExecutorLoss.EXECUTOR | ExecutorLoss.BESIDE:
            return fault.model_copy(update={"losses": fault.losses + 1, "first_at": fault.first_at or now})
        case ExecutorLoss.UNTAKEN | ExecutorLoss.UNTAKEN_BESIDE:
            return fault.model_copy(update={"missed": fault.missed + 1})
        case ExecutorLoss.REFUSED:
            return fault.model_copy(update={"refused_by": node.boot_id, "refusal": detail})
        case ExecutorLoss.NODE | ExecutorLoss.BESIDE_SUSPECT:
            return fault


def _witnesses(session: Session, faults: dict[str, Fault]) -> dict[str, Witness]:
    return {node.id: witness_of(node) for node in session.scalars(select(Node).where(Node.id.in_(faults)))}


def witness_of(node: Node) -> Witness:
    return Witness(tuple(node.losing), node.proved_at, len(node.devices))


def by_trust(node: Node, devices: Iterable[int], task: Task | None = None) -> list[int]:
    """The devices, best first: those that lost this task, and then those that lost others lately, come last."""
    fault = Fault() if task is None else faults_of(task).get(node.id, Fault())
    lost = {index for indexes in fault.devices for index in indexes}
    return sorted(devices, key=lambda index: (index in lost, node.device_losses.get(str(index), 0), index))


def _blame_too(node: Node, task_id: str) -> None:
    """The last counted loss was this task's as well: then it is evidence against none of its tasks."""
    if node.losing:
        node.losing = [*node.losing[:-1], f"{node.losing[-1]}+{task_id}"]


def _count(node: Node, task_id: str, now: datetime, unit: float, detail: str) -> None:
    node.losing = [*node.losing, task_id][-_REMEMBERED:]
    lost = len(node.losing)
    node.rests_until = now + timedelta(seconds=node_rest(lost, unit))
    if lost >= IN_A_ROW:
        node.quarantined_at = node.quarantined_at or now
        node.quarantine_reason = f"{lost} placements in a row were lost here; the last one: {detail or 'no detail'}"
        log.error("node %s is quarantined: %s", node.name, node.quarantine_reason)


def note_progress(session: Session, dependencies: Dependencies, task: Task, placement: Placement) -> None:
    """Record a checkpoint or a job's end: clears the earlier losses of the task and of its node."""
    task.faults = {name: task.faults[name] for name, one in faults_of(task).items() if one.refused_by} if task.faults else {}
    task.retry_at = None
    node = _locked(session, placement.node_id)
    node.proved_at = clock(session)
    sound = {str(index) for index in placement.device_indexes}
    node.device_losses = {index: lost for index, lost in node.device_losses.items() if index not in sound}
    if mend(node):
        log.info("node %s trains again; its executor losses are cleared", node.name)
        request_plan(session, dependencies.queue, "node_mended")


def mend(node: Node) -> bool:
    """Forget the node's losses. Returns whether it had any. The caller holds the row's lock."""
    had = bool(node.losing) or node.quarantined_at is not None
    if had:
        node.losing, node.rests_until, node.quarantined_at, node.quarantine_reason = [], None, None, None
    return had


@dataclass(frozen=True)
class Trouble:
    """Why a node takes no placements, or one at a time (`probing`), in words: `sentence` for everybody, `to_admins` for admins
    alone, since a worker's words may name the task and the files of another tenant."""

    status: str
    sentence: str
    to_admins: str
    probing: bool = False


def _told(status: str, sentence: str) -> "Trouble":
    """A trouble of which everybody is told the same."""
    return Trouble(status, sentence, sentence)


# every status that `trouble_of` gives
TROUBLES = ("stopping", "unreadable", "quarantined", "not_applying", "disk_full", "resting")


def unreadable_words(node: Node) -> str:
    """Why an unreadable node gets nothing, and the way out."""
    return f"its row's {', '.join(node.unreadable)} cannot be read; restart its worker, which registers them anew"


def trouble_of(node: Node, now: datetime, settings: Settings) -> Trouble | None:
    """What is wrong with a node that still sends heartbeats; None if nothing is."""
    if node.stopping_since is not None:
        said = f"its worker is being stopped since {node.stopping_since:%H:%M:%S} UTC; it takes nothing until it starts again"
        return _told("stopping", said)
    if node.unreadable:
        return _told("unreadable", unreadable_words(node))
    resting = node.rests_until is not None and node.rests_until > now
    if node.quarantined_at is not None:
        again = f"at {node.rests_until:%H:%M:%S} UTC" if resting else "now"
        said = f"it is quarantined, and {again} tried with one task"
        lost = f"{said}: it lost {len(node.losing)} placements in a row"
        return Trouble("quarantined", lost, f"{said}: {node.quarantine_reason}", probing=not resting)
    if _behind(node, now, settings):
        said = f"it has not acted upon what it should run since {node.behind_since:%H:%M:%S} UTC, although its heartbeats come"
        return _told("not_applying", said)
    if node.waits_for is not None and node.waits_since is not None:
        return _told("disk_full", f"it has waited for room on its disk since {node.waits_since:%H:%M:%S} UTC: {node.waits_for}")
    if resting:
        said = f"it lost {len(node.losing)} placements in a row, and takes the next at {node.rests_until:%H:%M:%S} UTC"
        return _told("resting", said)
    return None


def note_waits(node: Node, waits: Iterable[str | None], now: datetime) -> None:
    """Record what a heartbeat says that the node's placements wait for; workers of 0.1.0 say nothing."""
    node.waits_for = next((wait for wait in waits if wait is not None), None)
    node.waits_since = None if node.waits_for is None else node.waits_since or now


def _behind(node: Node, now: datetime, settings: Settings) -> bool:
    """Whether a newer desired state has been pending for over half a lease, and the node applied none in that time."""
    since = now - timedelta(seconds=settings.lease_seconds / 2)
    late = node.behind_since is not None and node.behind_since < since
    return late and (node.applied_at is None or node.applied_at < since)


def note_applied(node: Node, version: int | None, age: float | None, now: datetime) -> None:
    """Record the desired version that a heartbeat reports as applied. Workers of 0.1.0 and newly joined ones report none."""
    if version is None or age is None:
        return
    node.applied_version, node.applied_at = version, now - timedelta(seconds=age)
    if version >= node.desired_version:
        node.behind_since = None
    elif node.behind_since is None:
        node.behind_since = now
