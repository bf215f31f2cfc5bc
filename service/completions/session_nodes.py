"""Which node may hold a base for who asks it, and why none may: devices, memory, what failed there lately. Locks nothing."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.compatibility.capabilities import ANSWERS_ONLY
from service.completions import refusals
from service.completions.asked_bases import Wanted
from service.completions.refusals import Refusal
from service.fleet import answer_sessions
from service.fleet.base_models.base_refs import fetch_capabilities
from service.fleet.base_models.gpu_fit import BYTES_PER_WEIGHT, memory_of
from service.fleet.models import AnswerSession, BaseModel, Node, Placement
from service.fleet.node_health.quarantine import trouble_of
from service.settings import Settings

_ROOM = 1.25  # bytes beside the base's weights, as their multiple: adapters, keys and values
_TRIES, _FAILED = 2, timedelta(seconds=60)  # of a base on a node: sessions that may end unasked within this time


@dataclass(frozen=True)
class Fleet:
    """The nodes that can hold a base, in the order in which it is tried; what of them is free; where it failed lately."""

    able: Sequence[Node]
    fits: int  # nodes that could hold it, also those that take nothing at the moment,
    ready: int  # of so many that are ready
    least: float  # bytes of a device
    free: dict[str, list[int]]  # device indexes by node
    failed: dict[str, datetime]  # until when it is not tried there, by node

    @property
    def open(self) -> Node | None:
        return next((node for node in self.able if self.free[node.id] and node.id not in self.failed), None)


def fleet_for(session: Session, settings: Settings, base: BaseModel, wanted: Wanted, now: datetime) -> Fleet:
    """Nothing is locked: what is free may be taken meanwhile."""
    needs = {ANSWERS_ONLY, f"model_type={base.model_type}", *fetch_capabilities(base)}
    least = base.parameters * BYTES_PER_WEIGHT[wanted.precision] * _ROOM
    ready = session.scalars(select(Node).where(Node.status == "ready", Node.drained_at.is_(None)).order_by(Node.id)).all()
    fits = [node for node in ready if needs <= set(node.capabilities or ()) and memory_of(node) >= least]
    able = [node for node in fits if trouble_of(node, now, settings) is None]
    able.sort(key=lambda node: base.name not in node.tokens_per_second)  # those that trained on it have it
    return Fleet(able, len(fits), len(ready), least, free_devices(session, able), _failed(session, wanted, now))


def free_devices(session: Session, nodes: Sequence[Node]) -> dict[str, list[int]]:
    """Devices of these nodes that neither a placement nor a session holds."""
    ids, taken = [node.id for node in nodes], set[tuple[str, int]]()
    held = select(Placement.node_id, func.unnest(Placement.device_indexes))
    asked = select(AnswerSession.node_id, AnswerSession.device_index)
    for found in (
        held.where(Placement.node_id.in_(ids), Placement.ended_at.is_(None)),
        asked.where(AnswerSession.node_id.in_(ids), AnswerSession.ended_at.is_(None)),
    ):
        taken |= {(node, index) for node, index in session.execute(found)}
    indexes = {node.id: [int(str(device["index"])) for device in node.devices] for node in nodes}
    return {node: [index for index in of_node if (node, index) not in taken] for node, of_node in indexes.items()}


def _failed(session: Session, wanted: Wanted, now: datetime) -> dict[str, datetime]:
    """The nodes where the base's sessions ended unasked more often than it is tried, and until when it is not tried there."""
    row = AnswerSession
    lately = select(row.node_id, row.ended_at).where(
        row.base_revision == wanted.base_revision, row.precision == wanted.precision
    )
    lately = lately.where(row.ended_at > now - _FAILED, row.end_reason.not_in(answer_sessions.AS_MEANT))
    ends: dict[str, list[datetime]] = defaultdict(list)
    for node, ended_at in session.execute(lately.order_by(row.ended_at)):
        if ended_at is not None:
            ends[node].append(ended_at)
    return {node: of_node[-_TRIES] + _FAILED for node, of_node in ends.items() if len(of_node) >= _TRIES}


def why_none(session: Session, settings: Settings, wanted: Wanted, fleet: Fleet, now: datetime) -> Refusal:
    """Why no node of the fleet is open for it."""
    base, precision = wanted.base_model, wanted.precision
    if not fleet.able:
        return refusals.unfit(base, precision, fleet.least, fleet.fits, fleet.ready)
    tried = [fleet.failed[node.id] for node in fleet.able if node.id in fleet.failed and fleet.free[node.id]]
    if tried:
        return refusals.failing(base, precision, (min(tried) - now).total_seconds())
    here, idle = [node.id for node in fleet.able], timedelta(seconds=settings.completion_idle_seconds)
    placed = session.scalars(select(Placement).where(Placement.node_id.in_(here), Placement.ended_at.is_(None))).all()
    asked = session.scalars(
        select(AnswerSession).where(AnswerSession.node_id.in_(here), AnswerSession.ended_at.is_(None))
    ).all()
    ends = [one.expected_end for one in placed if one.expected_end is not None] + [one.used_at + idle for one in asked]
    by_tasks = {(one.node_id, index) for one in placed for index in one.device_indexes}
    devices = sum(len(node.devices) for node in fleet.able)
    free_in = (min(ends) - now).total_seconds() if ends else None
    return refusals.busy(base, precision, devices, len(by_tasks), free_in)
