"""A heartbeat renews leases, acknowledges placements, and releases those whose executors stall. A few short transactions."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from contract.messages.node_messages import Heartbeat, HeartbeatAnswer, LeaseGrant, Pulse
from contract.states import RequeueReason
from service.dependencies import Dependencies
from service.fleet import answer_sessions
from service.fleet.errors import NodeUnknown
from service.fleet.heartbeats.heartbeat_statements import HeldPlacement, lock_node, lock_placements, renew, write_node
from service.fleet.lease_clock import lease_until
from service.fleet.merges import merge_leases
from service.fleet.models import Node
from service.fleet.node_health.quarantine import ExecutorLoss, note_applied, note_waits, trouble_of
from service.fleet.nodes import check_protocol, lose
from service.fleet.worker_authentication import check_node, credential_hash, placement_token
from service.messaging.plan_requests import request_plan
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import lock_placement
from service.tasks.lifecycle.task_trace import pulled

_STALL_STEPS = 20
_STORING_SECONDS = 6 * 3600.0  # a merge is silent while it stores a file: it syncs, hashes and sends some 5 GB
_SILENT_SECONDS = 600.0  # at least, while it loads; its loop reports each second then, once its process has begun


def accept_heartbeat(dependencies: Dependencies, node_id: str, bearer: str | None, said: Heartbeat) -> HeartbeatAnswer:
    """Renew the leases of placements with a pulse, acknowledge new ones, and release those whose executors stall.

    A placement that was asked to leave gets its remaining lease in the answer, but no renewal.
    """
    check_protocol(said.protocol, f"node {node_id}")
    settings, pulses = dependencies.settings, {pulse.placement_id: pulse for pulse in said.pulses}
    with dependencies.db.begin() as session:
        credential = credential_hash(bearer or "")
        held = lock_placements(session, node_id, credential, pulses) if pulses else []
        node, now = _locked(session, node_id, bearer, said.boot_id)
        alive = [(one, pulses[one.id]) for one in held if one.ended_at is None and one.fence == pulses[one.id].fence]
        stalled = [(one, pulse) for one, pulse in alive if _stalls(settings, one, pulse)]
        going_on = [(one, pulse) for one, pulse in alive if not _stalls(settings, one, pulse)]
        until = lease_until(now, settings)
        renew(session, [one.id for one, _ in going_on], now, until)
        for one, _ in going_on:
            if one.acknowledged_at is None:
                pulled(session, one.id, now)
        leases = [_grant(settings, one, now, until if one.leaving is None else one.lease_until) for one, _ in going_on]
        known = {one.id for one in held}
        others = [pulse for pulse in said.pulses if pulse.placement_id not in known]
        leases += _record(dependencies, session, node, said, others, now)
    _release(dependencies, stalled)
    for one, pulse in going_on:
        if (one.waits_for, one.loading) != (pulse.waits_for, pulse.loading):
            _note_wait(dependencies, pulse)
    return HeartbeatAnswer(leases=leases, desired_version=node.desired_version)


def _locked(session: Session, node_id: str, bearer: str | None, boot_id: str) -> tuple[Node, datetime]:
    """The heartbeat's node, locked, and the time. Raises NodeUnknown."""
    found = lock_node(session, node_id, credential_hash(bearer)) if bearer is not None else None
    if found is None or found[0].status != "ready":
        check_node(session, node_id, bearer)  # says what is wrong
        raise NodeUnknown("The node was given up just now; end all executors and register.")
    if found[0].boot_id != boot_id:
        raise NodeUnknown(f"Node {found[0].name} has booted again since; end all executors and register.")
    return found


def _stalls(settings: Settings, placement: HeldPlacement, pulse: Pulse) -> bool:
    """Whether the executor made no progress for longer than the limit and than 20 of its own steps. Loading takes as long as it
    takes, but an executor that says nothing meanwhile is stopped, or hangs."""
    return _hangs(settings, pulse, placement.train_seconds / placement.steps if placement.steps else 0.0)


def _hangs(settings: Settings, pulse: Pulse, per_step: float) -> bool:
    if pulse.phase == "loading":
        longest = _STORING_SECONDS if merge_leases.is_merge(pulse.placement_id) else _SILENT_SECONDS
        return pulse.progress_age > max(settings.stall_seconds, longest)
    return pulse.progress_age > max(settings.stall_seconds, _STALL_STEPS * per_step)


def _release(dependencies: Dependencies, stalled: Sequence[tuple[HeldPlacement, Pulse]]) -> None:
    losses = dict[tuple[int, ...], ExecutorLoss]()  # by devices: one executor with several tasks is one loss of its node
    for placement, pulse in stalled:
        devices = tuple(sorted(placement.device_indexes))
        loss = losses.get(devices, ExecutorLoss.EXECUTOR)
        detail = f"no progress for {pulse.progress_age:.0f} s"
        losses[devices] = lose(dependencies, placement.id, RequeueReason.EXECUTOR_LOST, detail, loss) or loss


def _note_wait(dependencies: Dependencies, pulse: Pulse) -> None:
    """Record what a live placement waits for, and how far its base is, where its task's readers see it. A transaction
    of its own, since the task is locked before its placement."""
    with dependencies.db.begin() as session:
        found = lock_placement(session, pulse.placement_id)
        if found is not None and found[1].ended_at is None:
            task, placement = found
            placement.waits_for, placement.loading = pulse.waits_for, pulse.loading
            bump_version_and_notify(session, task)


def _grant(settings: Settings, placement: HeldPlacement, now: datetime, until: datetime) -> LeaseGrant:
    return LeaseGrant(
        placement_id=placement.id,
        fence=placement.fence,
        seconds=max(0.0, (until - now).total_seconds()),
        token=placement_token(settings, placement.id, placement.fence),
    )


def _record(
    dependencies: Dependencies, session: Session, node: Node, said: Heartbeat, others: Sequence[Pulse], now: datetime
) -> list[LeaseGrant]:
    """Record the heartbeat and the applied version, and renew what others than placements hold on the node, which is locked.
    others: pulses of none of its placements."""
    if _forget_before_joining(node):
        request_plan(session, dependencies.queue, "node_joined")
    before = trouble_of(node, now, dependencies.settings)
    note_applied(node, said.applied_version, said.applied_age, now)
    ids = [pulse.placement_id for pulse in others]
    beside = answer_sessions.among(session, node.id, ids) | merge_leases.among(session, node.id, ids) if ids else set()
    note_waits(node, [pulse.waits_for for pulse in said.pulses if pulse.placement_id not in beside], now)
    node.heartbeat_at, node.base_rate = now, said.base_bytes_per_second
    write_node(session, node, said.bases)
    after = trouble_of(node, now, dependencies.settings)
    if before is not None and before.status in ("not_applying", "disk_full") and after is None:
        request_plan(session, dependencies.queue, "node_applies" if before.status == "not_applying" else "node_has_room")
    elif before is None and after is not None and after.status == "disk_full":
        request_plan(session, dependencies.queue, "node_disk_full")  # those that wait are told
    if not beside:
        return []
    live = [one for one in others if not _hangs(dependencies.settings, one, 0.0)]
    able = [one for one in live if one.waits_for is None]
    leases = answer_sessions.renew(session, dependencies.settings, node.id, able, now)
    return leases + merge_leases.renew(session, dependencies.settings, node.id, live, now)


def _forget_before_joining(node: Node) -> bool:
    """Whether the node had stopped, or been removed, before it joined. A process of the version before, which may have welcomed
    it, knows of neither."""
    stopped = node.stopping_since is not None and node.stopping_since < node.joined_at
    removed = node.removed_at is not None and node.removed_at < node.joined_at
    node.stopping_since = None if stopped else node.stopping_since
    node.removed_at = None if removed else node.removed_at
    return stopped or removed
