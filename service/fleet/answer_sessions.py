"""Leases of executors that answer completions alone: renewed, told to nodes, ended. Chooses no device and knows no requests.

A session holds nothing against a task: whoever places a task ends the sessions on its devices in the same transaction. Lock
order: node, session.
"""

import logging
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, and_, cast, delete, func, literal, or_, select, union_all
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from contract.messages.node_messages import LeaseGrant, Pulse
from contract.messages.placement_messages import AnswersOnly
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.base_models.base_refs import base_ref
from service.fleet.errors import FenceStale
from service.fleet.lease_clock import lease_until
from service.fleet.models import NODE_LOCK, AnswerSession, BaseModel, EndedAnswerSessions, Node, Placement
from service.fleet.worker_authentication import check_placement, placement_token, token_refused
from service.settings import Settings
from service.tasks.lifecycle.placements import touch_nodes

log = logging.getLogger(__name__)

IDLE, TAKEN, SHUT, ANEW, REMOVED = (
    "nobody asked for a while",
    "a task took the device",
    "its node takes nothing",
    "its node started anew",
    "its base was removed",
)
AS_MEANT = (IDLE, TAKEN, SHUT, ANEW, REMOVED)  # reasons of ends that say nothing against the node
_KEPT = timedelta(hours=1)  # of ended sessions: the cluster's timeline shows them
_REMOVED = select(BaseModel.name).where(~BaseModel.enabled)
_SHUT = select(Node.id).where(or_(Node.status != "ready", Node.drained_at.is_not(None)))


def own_session(session: Session, settings: Settings, id: str, bearer: str | None) -> AnswerSession | None:
    """The token's session; None where this is the id of none. Raises PlacementTokenRefused, and FenceStale once it is over."""
    fence = check_placement(settings, id, bearer)
    found = session.get(AnswerSession, id)
    if found is None:
        return None
    if found.fence != fence:
        raise token_refused(id)
    if found.ended_at is not None or found.lease_until < clock(session):
        raise FenceStale(f"Session {id} is over ({found.end_reason or 'its lease is over'}); nothing was changed.")
    return found


def among(session: Session, node_id: str, ids: Collection[str]) -> set[str]:
    """Those of these ids that are the node's sessions, live or ended."""
    return set(session.scalars(select(AnswerSession.id).where(AnswerSession.id.in_(ids), AnswerSession.node_id == node_id)))


def renew(session: Session, settings: Settings, node_id: str, pulses: Collection[Pulse], now: datetime) -> list[LeaseGrant]:
    """Renew the node's sessions among these pulses, which its executors hold and which make progress. One that loads is not
    idle: who asked for it may ask again once it is there. The caller holds the node's lock."""
    loads = {pulse.placement_id: pulse.phase == "loading" for pulse in pulses}
    own = select(AnswerSession).where(AnswerSession.id.in_(loads), AnswerSession.node_id == node_id)
    live = session.scalars(own.where(AnswerSession.ended_at.is_(None)).order_by(AnswerSession.id).with_for_update())
    grants = []
    for found in live:
        found.acknowledged_at = found.acknowledged_at or now
        found.used_at = now if loads[found.id] else found.used_at
        found.lease_until = lease_until(now, settings)
        token = placement_token(settings, found.id, found.fence)
        grants.append(LeaseGrant(placement_id=found.id, fence=found.fence, seconds=settings.lease_seconds, token=token))
    return grants


def wanted(session: Session, settings: Settings, node: Node) -> list[AnswersOnly]:
    """The node's live sessions, as its daemon hears of them; without those that this version cannot describe."""
    now, told = clock(session), []
    live = select(AnswerSession, BaseModel).join(BaseModel, BaseModel.name == AnswerSession.base_model)
    live = live.where(AnswerSession.node_id == node.id, AnswerSession.ended_at.is_(None)).order_by(AnswerSession.id)
    for found, base in session.execute(live):
        try:
            ref = base_ref(session, base, found.base_revision, found.precision)  # type: ignore[arg-type]
        except ValueError as error:  # a precision or a source of a newer version, which started it
            log.warning("answer session %s ends on its node, since this version cannot read it: %s", found.id, error)
            continue
        told.append(
            AnswersOnly(
                placement_id=found.id,
                fence=found.fence,
                token=placement_token(settings, found.id, found.fence),
                lease_seconds=max(0.0, (found.lease_until - now).total_seconds()),
                device_indexes=[found.device_index],
                base=ref,
            )
        )
    return told


def end(session: Session, reason: str, *which: ColumnElement[bool]) -> list[str]:
    """End the live sessions that this holds for, and return their nodes: the caller tells them."""
    live = select(AnswerSession).where(AnswerSession.ended_at.is_(None), *which).order_by(AnswerSession.id).with_for_update()
    ended, now = list(session.scalars(live)), clock(session)
    for found in ended:
        found.ended_at, found.end_reason = now, reason
    return sorted({found.node_id for found in ended})


def give_way(session: Session, node_id: str, devices: Iterable[int]) -> None:
    """A task is placed on these devices. The caller holds the node's lock, and tells the node."""
    end(session, TAKEN, AnswerSession.node_id == node_id, AnswerSession.device_index.in_(list(devices)))


def end_over(dependencies: Dependencies) -> None:
    """End sessions that nobody asked for a while, whose lease is over, whose node takes nothing, whose base was
    removed, or whose device a task holds (placed by a version that knows no sessions). Removes those that ended long ago."""
    row, settings = AnswerSession, dependencies.settings
    with dependencies.db.begin() as session:
        now = clock(session)
        idle = and_(row.used_at < now - timedelta(seconds=settings.completion_idle_seconds), row.acknowledged_at.is_not(None))
        placed = select(Placement.id).where(Placement.node_id == row.node_id, Placement.ended_at.is_(None))
        why = {
            TAKEN: placed.where(row.device_index == func.any(Placement.device_indexes)).exists(),
            IDLE: idle,
            "its lease ran out": row.lease_until < now,
            SHUT: row.node_id.in_(_SHUT),
            REMOVED: row.base_model.in_(_REMOVED),
        }
        affected = select(row.node_id).where(row.ended_at.is_(None), or_(*why.values()))
        found = select(Node.id).where(Node.id.in_(affected)).order_by(Node.id)
        nodes = list(session.scalars(found.with_for_update(**NODE_LOCK)))
        for reason, holds in why.items():  # nodes are locked before their sessions
            end(session, reason, row.node_id.in_(nodes), holds)
            session.flush()
        if nodes:
            touch_nodes(session, dependencies.wakeups, *nodes)
        _forget(session, now - _KEPT)


def _forget(session: Session, before: datetime) -> None:
    """Remove ended sessions; their sums stay. In one statement, so that a scrape counts each once."""
    row, kept = AnswerSession, EndedAnswerSessions
    held = func.extract("epoch", row.ended_at - row.created_at).label("seconds")
    gone = delete(row).where(row.ended_at < before).returning(row.base_model, held).cte("gone")
    sums = select(gone.c.base_model, func.sum(gone.c.seconds)).group_by(gone.c.base_model)
    added = insert(kept).from_select(["base_model", "gpu_seconds"], sums)
    more = {"gpu_seconds": kept.gpu_seconds + added.excluded.gpu_seconds}
    session.execute(added.on_conflict_do_update(index_elements=[kept.base_model], set_=more))


def held_by_base() -> Select[Any]:
    """Of all sessions that ever were: base_model, how many live, and the seconds for which they held a device."""
    row, kept = AnswerSession, EndedAnswerSessions
    seconds = func.extract("epoch", func.coalesce(row.ended_at, func.clock_timestamp()) - row.created_at)
    rows = select(row.base_model, cast(row.ended_at.is_(None), Integer).label("live"), seconds.label("gpu_seconds"))
    every = union_all(rows, select(kept.base_model, literal(0), kept.gpu_seconds)).subquery()
    return select(every.c.base_model, func.sum(every.c.live), func.sum(every.c.gpu_seconds)).group_by(every.c.base_model)
