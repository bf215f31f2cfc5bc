"""Nodes: registration and loss. Each step is a short transaction of its own."""

import logging

from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.compatibility.protocol import PROTOCOL, refusal
from contract.messages.node_messages import NodeRegistration, NodeWelcome, PlacementsLost
from contract.states import RequeueReason
from service.database.engine import after_commit, clock, new_id
from service.dependencies import Dependencies
from service.fleet import answer_sessions, join_tokens
from service.fleet.errors import ProtocolUnsupported
from service.fleet.merges import merge_leases
from service.fleet.models import NODE_LOCK, AnswerSession, Node, Placement
from service.fleet.node_health.quarantine import ExecutorLoss, release_lost
from service.fleet.worker_authentication import check_node, credential_hash, mint_credential
from service.messaging.plan_requests import request_plan
from service.messaging.queue import QueueJob
from service.messaging.wakeups import stream_of
from service.tasks.lifecycle.placements import lock_placement

log = logging.getLogger(__name__)


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
    for name in node.unreadable:  # which it says anew, or which begin anew
        setattr(node, name, [] if isinstance(getattr(node, name), list) else {})
    node.boot_id, node.status, node.versions = said.boot_id, "ready", said.versions
    node.protocol, node.capabilities, node.bases = said.protocol, said.capabilities, said.bases
    node.applied_version = node.applied_at = node.behind_since = node.waits_for = node.waits_since = None
    node.stopping_since = node.removed_at = None
    node.devices = [device.model_dump(mode="json") for device in said.devices]
    node.credential_hash = credential_hash
    node.desired_version += 1
    node.joined_at = node.heartbeat_at = clock(session)


def report_lost(dependencies: Dependencies, node_id: str, bearer: str | None, said: PlacementsLost) -> None:
    """Release the placements that the daemon reports as lost with their executors, or refuses. Placements that have ended
    since, or whose fence is newer, are left alone. A node that stops gives back besides what it has not taken up."""
    crashed = ExecutorLoss.UNTAKEN if said.untaken else ExecutorLoss.EXECUTOR
    counted = crashed if said.reason == RequeueReason.EXECUTOR_LOST else None
    loss = ExecutorLoss.REFUSED if said.refused else counted
    with dependencies.db.begin() as session:
        node = check_node(session, node_id, bearer)
        session.refresh(node, with_for_update=NODE_LOCK)  # before its sessions, as everywhere
        own = select(Placement.id, Placement.fence).where(Placement.node_id == node_id, Placement.id.in_(list(said.fences)))
        fences = session.execute(own.order_by(Placement.id))
        lost = [placement_id for placement_id, fence in fences if said.fences[placement_id] == fence]
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
        # one executor with several tasks is one loss of its node
        loss = lose(dependencies, placement_id, said.reason, said.detail, loss) or loss


def lose(
    dependencies: Dependencies, placement_id: str, reason: RequeueReason, detail: str, loss: ExecutorLoss | None = None
) -> ExecutorLoss | None:
    """Requeue a live placement's task in a transaction of its own, and count the `loss`. Returns what `release_lost` does; None
    of a placement that had ended."""
    with dependencies.db.begin() as session:
        found = lock_placement(session, placement_id)
        if found is None or found[1].ended_at is not None:
            return None
        task, placement = found
        log.warning("task %s leaves node %s as %s: %s", task.id, placement.node_id, reason, detail or "no detail")
        return release_lost(session, dependencies, task, placement, reason, detail, loss)
