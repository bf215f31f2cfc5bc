"""Nodes: registration, heartbeats that renew leases, and loss. Each step is a short transaction of its own."""

import logging
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.compatibility.protocol import PROTOCOL, refusal
from contract.messages.node_messages import (
    Heartbeat,
    HeartbeatAnswer,
    LeaseGrant,
    NodeRegistration,
    NodeWelcome,
    PlacementsLost,
    Pulse,
)
from contract.states import RequeueReason
from service.database.engine import after_commit, clock, new_id
from service.dependencies import Dependencies
from service.fleet import answer_sessions, join_tokens
from service.fleet.errors import NodeUnknown, ProtocolUnsupported
from service.fleet.lease_clock import lease_until
from service.fleet.merges import merge_leases
from service.fleet.models import NODE_LOCK, AnswerSession, Node, Placement
from service.fleet.node_health.quarantine import ExecutorLoss, note_applied, note_waits, release_lost, trouble_of
from service.fleet.worker_authentication import check_node, credential_hash, mint_credential, placement_token
from service.messaging.plan_requests import request_plan
from service.messaging.queue import QueueJob
from service.messaging.wakeups import stream_of
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import lock_placement
from service.tasks.lifecycle.task_trace import pulled

log = logging.getLogger(__name__)

_STALL_STEPS = 20


def register(dependencies: Dependencies, said: NodeRegistration, bearer: str | None) -> NodeWelcome:
    """Register a node under a new credential, after releasing all that the service thought it ran. Raises JoinRefused.

    A daemon registers when it runs nothing: at its start, or after it ended all executors. It proposes its credential, so that
    it can register again if the answer got lost. A quarantined node is tried with a task at once, unless its previous boot
    ended with a live placement, which counts as a loss unless the worker had said that it stops.
    """
    check_protocol(said.protocol, f"node {said.name} (motet {said.versions.get('motet', 'of a version that it does not say')})")
    credential = said.credential or mint_credential()
    loss: ExecutorLoss | None = ExecutorLoss.NODE
    while True:
        with dependencies.db.begin() as session:
            node = session.scalar(_named(said.name))
            token = join_tokens.authorize(session, said.name, node, bearer)
            node = node or _make_node(session, said.name)
            node.status = "lost"  # no plan may use it while its placements are released
            stopping = node.stopping_since is not None
            left = _live(session, node.id)
            if not left:
                if token is not None:
                    token.used_at = clock(session)
                answer_sessions.end(session, answer_sessions.ANEW, AnswerSession.node_id == node.id)
                _welcome(session, node, said, credential_hash(credential))
                if loss is not None and node.quarantined_at is not None:
                    node.rests_until = node.joined_at
                request_plan(session, dependencies.queue, "node_joined")
                log.info("node %s joined as %s with %d devices", node.name, node.id, len(said.devices))
                return NodeWelcome(
                    node_id=node.id,
                    credential=credential,
                    stream=stream_of(node.id),
                    heartbeat_seconds=dependencies.settings.heartbeat_seconds,
                    lease_seconds=dependencies.settings.lease_seconds,
                    protocol=PROTOCOL,
                )
        for placement_id in left:
            counts = None if stopping else loss
            if lose(dependencies, placement_id, RequeueReason.NODE_LOST, f"node {said.name} started anew", counts):
                loss = None  # a reboot counts as one loss, however many placements it ended


def check_protocol(theirs: int, they: str) -> None:
    """Raise ProtocolUnsupported if this version cannot talk to a peer (`they`) with the protocol version `theirs`."""
    if (why := refusal(PROTOCOL, theirs, they)) is not None:
        raise ProtocolUnsupported(f"{why}.")


def _named(name: str) -> Select[Node]:
    return select(Node).where(Node.name == name).with_for_update(**NODE_LOCK)


def _make_node(session: Session, name: str) -> Node:
    """The new node's row, locked; a concurrent registration may have created it."""
    made = {"id": new_id("node"), "name": name, "boot_id": "", "status": "lost", "devices": [], "versions": {}}
    blank = {"credential_hash": b"", "desired_version": 0, "tokens_per_second": {}}
    session.execute(insert(Node).values(**made, **blank).on_conflict_do_nothing(index_elements=[Node.name]))
    return session.scalars(_named(name)).one()


def _live(session: Session, node_id: str) -> list[str]:
    return list(session.scalars(select(Placement.id).where(Placement.node_id == node_id, Placement.ended_at.is_(None))))


def _welcome(session: Session, node: Node, said: NodeRegistration, credential_hash: bytes) -> None:
    node.boot_id, node.status, node.versions = said.boot_id, "ready", said.versions
    node.protocol, node.capabilities, node.bases = said.protocol, said.capabilities, said.bases
    node.applied_version = node.applied_at = node.behind_since = node.waits_for = node.waits_since = None
    node.stopping_since = node.removed_at = None
    node.devices = [device.model_dump(mode="json") for device in said.devices]
    node.credential_hash = credential_hash
    node.desired_version += 1
    node.joined_at = node.heartbeat_at = clock(session)


def heartbeat(dependencies: Dependencies, node_id: str, bearer: str | None, said: Heartbeat) -> HeartbeatAnswer:
    """Renew the leases of placements with a pulse, acknowledge new ones, and release those whose executors stall.

    A placement that was asked to leave gets its remaining lease in the answer, but no renewal.
    """
    check_protocol(said.protocol, f"node {node_id}")
    with dependencies.db.begin() as session:
        node = check_node(session, node_id, bearer)
        if node.boot_id != said.boot_id:
            raise NodeUnknown(f"Node {node.name} has booted again since; end all executors and register.")
        stalled, leases, told = [], [], dict[str, Pulse]()
        now = clock(session)
        for placement, pulse in _pulsing(session, node_id, said.pulses):
            if _stalls(dependencies.settings, placement, pulse):
                devices = tuple(sorted(placement.device_indexes))
                stalled.append((placement.id, f"no progress for {pulse.progress_age:.0f} s", devices))
            else:
                if placement.acknowledged_at is None:
                    placement.acknowledged_at = now
                    pulled(session, placement, now)
                placement.heartbeat_at = now
                if placement.leaving is None:
                    placement.lease_until = lease_until(now, dependencies.settings)
                leases.append(_grant(dependencies.settings, placement, now))
                if (placement.waits_for, placement.loading) != (pulse.waits_for, pulse.loading):
                    told[placement.id] = pulse
        session.flush()
        version = _record_heartbeat(dependencies, session, node, said, now)
        held = [one for one in said.pulses if one.waits_for is None and not _hangs(dependencies.settings, one, 0.0)]
        leases += answer_sessions.renew(session, dependencies.settings, node_id, held, now)
        leases += merge_leases.renew(session, dependencies.settings, node_id, held, now)
    counted = set[tuple[int, ...]]()  # one executor with several tasks is one loss of its node
    for placement_id, detail, devices in stalled:
        loss = ExecutorLoss.BESIDE if devices in counted else ExecutorLoss.EXECUTOR
        if lose(dependencies, placement_id, RequeueReason.EXECUTOR_LOST, detail, loss):
            counted.add(devices)
    for placement_id, pulse in told.items():
        _note_wait(dependencies, placement_id, pulse)
    return HeartbeatAnswer(leases=leases, desired_version=version)


def _pulsing(session: Session, node_id: str, pulses: list[Pulse]) -> list[tuple[Placement, Pulse]]:
    """The node's live placements that these pulses are about, locked. Ignores pulses of an older fence."""
    said = {pulse.placement_id: pulse for pulse in pulses}
    live = (Placement.node_id == node_id, Placement.ended_at.is_(None), Placement.id.in_(list(said)))
    locked = session.scalars(select(Placement).where(*live).order_by(Placement.id).with_for_update())
    return [(placement, said[placement.id]) for placement in locked if said[placement.id].fence == placement.fence]


def _stalls(settings: Settings, placement: Placement, pulse: Pulse) -> bool:
    """Whether the executor made no progress for longer than the limit and than 20 of its own steps. Loading has no limit."""
    return _hangs(settings, pulse, placement.train_seconds / placement.steps if placement.steps else 0.0)


def _hangs(settings: Settings, pulse: Pulse, per_step: float) -> bool:
    return pulse.phase != "loading" and pulse.progress_age > max(settings.stall_seconds, _STALL_STEPS * per_step)


def _note_wait(dependencies: Dependencies, placement_id: str, pulse: Pulse) -> None:
    """Record what a live placement waits for, and how far its base is, where its task's readers see it. A transaction
    of its own, since the task is locked before its placement."""
    with dependencies.db.begin() as session:
        found = lock_placement(session, placement_id)
        if found is not None and found[1].ended_at is None:
            task, placement = found
            placement.waits_for, placement.loading = pulse.waits_for, pulse.loading
            bump_version_and_notify(session, task)


def _grant(settings: Settings, placement: Placement, now: datetime) -> LeaseGrant:
    return LeaseGrant(
        placement_id=placement.id,
        fence=placement.fence,
        seconds=max(0.0, (placement.lease_until - now).total_seconds()),
        token=placement_token(settings, placement.id, placement.fence),
    )


def _record_heartbeat(dependencies: Dependencies, session: Session, node: Node, said: Heartbeat, now: datetime) -> int:
    """Record heartbeat and applied version; returns the desired version. Raises NodeUnknown if the node was lost meanwhile."""
    boot = node.boot_id
    session.refresh(node, with_for_update=NODE_LOCK)
    if (node.boot_id, node.status) != (boot, "ready"):
        raise NodeUnknown(f"Node {node.name} was given up just now; end all executors and register.")
    if _forget_before_joining(node):
        request_plan(session, dependencies.queue, "node_joined")
    before = trouble_of(node, now, dependencies.settings)
    note_applied(node, said.applied_version, said.applied_age, now)
    ids = [pulse.placement_id for pulse in said.pulses]
    beside = answer_sessions.among(session, node.id, ids) | merge_leases.among(session, node.id, ids)
    note_waits(node, [pulse.waits_for for pulse in said.pulses if pulse.placement_id not in beside], now)
    node.heartbeat_at = now
    node.bases, node.base_rate = said.bases, said.base_bytes_per_second
    after = trouble_of(node, now, dependencies.settings)
    if before is not None and before.status in ("not_applying", "disk_full") and after is None:
        request_plan(session, dependencies.queue, "node_applies" if before.status == "not_applying" else "node_has_room")
    elif before is None and after is not None and after.status == "disk_full":
        request_plan(session, dependencies.queue, "node_disk_full")  # those that wait are told
    return node.desired_version


def _forget_before_joining(node: Node) -> bool:
    """Whether the node had stopped, or been removed, before it joined. A process of the version before, which may have welcomed
    it, knows of neither."""
    stopped = node.stopping_since is not None and node.stopping_since < node.joined_at
    removed = node.removed_at is not None and node.removed_at < node.joined_at
    node.stopping_since = None if stopped else node.stopping_since
    node.removed_at = None if removed else node.removed_at
    return stopped or removed


def report_lost(dependencies: Dependencies, node_id: str, bearer: str | None, said: PlacementsLost) -> None:
    """Release the placements that the daemon reports as lost with their executors, or refuses. Placements that have ended
    since, or whose fence is newer, are left alone. A node that stops gives back besides what it has not taken up."""
    loss: ExecutorLoss | None = ExecutorLoss.EXECUTOR if said.reason == RequeueReason.EXECUTOR_LOST else None
    with dependencies.db.begin() as session:
        node = check_node(session, node_id, bearer)
        session.refresh(node, with_for_update=NODE_LOCK)  # before its sessions, as everywhere
        own = select(Placement.id, Placement.fence).where(Placement.node_id == node_id, Placement.id.in_(list(said.fences)))
        lost = [placement_id for placement_id, fence in session.execute(own) if said.fences[placement_id] == fence]
        if said.stopping:  # or its tasks would be given back to it until its heartbeats are missed
            if node.stopping_since is None:
                node.stopping_since = clock(session)
                request_plan(session, dependencies.queue, "node_stopping")
            untaken = Placement.acknowledged_at.is_(None), Placement.ended_at.is_(None), Placement.id.not_in(lost)
            lost += session.scalars(select(Placement.id).where(Placement.node_id == node_id, *untaken))
        merge_leases.lose(session, node_id, said.fences, said.detail, counted=not said.stopping)
        if said.stopping:
            merge_leases.give_back_untaken(session, node_id, said.detail)
        gone = (AnswerSession.node_id == node_id, AnswerSession.id.in_(list(said.fences)))
        if answer_sessions.end(session, said.detail or "its executor ended", *gone):
            after_commit(session, lambda: dependencies.queue.wake(QueueJob.ANSWER))  # who waited for it gets another
    for placement_id in lost:
        counted = lose(dependencies, placement_id, said.reason, said.detail, ExecutorLoss.REFUSED if said.refused else loss)
        if counted and loss is ExecutorLoss.EXECUTOR:
            loss = ExecutorLoss.BESIDE  # one executor with several tasks is one loss of its node


def lose(
    dependencies: Dependencies, placement_id: str, reason: RequeueReason, detail: str, loss: ExecutorLoss | None = None
) -> bool:
    """Requeue a live placement's task in a transaction of its own, and count the `loss`. Returns False if it had ended."""
    with dependencies.db.begin() as session:
        found = lock_placement(session, placement_id)
        if found is None or found[1].ended_at is not None:
            return False
        task, placement = found
        log.warning("task %s leaves node %s as %s: %s", task.id, placement.node_id, reason, detail or "no detail")
        release_lost(session, dependencies, task, placement, reason, detail, loss)
        return True
