"""The statements of a heartbeat, prepared once: its node, and the placements that it is about, each locked and then written.

Decides nothing. Lock order: placements, node.
"""

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, String, Text, any_, bindparam, case, cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from service.database.engine import among_ids
from service.database.prepared_statements import PreparedStatement
from service.fleet.models import NODE_LOCK, Node, Placement

_OWN = (Node.id == bindparam("node"), Node.credential_hash == bindparam("credential", type_=Node.credential_hash.type))
_NODE = (
    *(Node.id, Node.name, Node.boot_id, Node.status, Node.joined_at, Node.desired_version, Node.applied_version),
    *(Node.applied_at, Node.behind_since, Node.stopping_since, Node.removed_at, Node.losing, Node.rests_until),
    *(Node.quarantined_at, Node.quarantine_reason, Node.waits_for, Node.waits_since, Node.bases, Node.base_rate),
)
_LOCK_NODE = PreparedStatement(select(func.clock_timestamp(), *_NODE).where(*_OWN).with_for_update(**NODE_LOCK))
# what a heartbeat may change of its node, but for the bases, which are many and seldom change
_WRITTEN = (
    *("heartbeat_at", "applied_version", "applied_at", "behind_since", "stopping_since", "removed_at"),
    *("waits_for", "waits_since", "base_rate"),
)
_values = {name: bindparam(f"new_{name}", type_=getattr(Node, name).type) for name in _WRITTEN}
_written = update(Node).where(Node.id == bindparam("node")).values(**_values)
_WRITE_NODE = PreparedStatement(_written)
_WRITE_NODE_AND_BASES = PreparedStatement(_written.values(bases=cast(bindparam("new_bases", type_=Text), JSONB)))


class HeldPlacement(NamedTuple):
    """What a heartbeat reads of a placement of its node, live or ended."""

    id: str
    fence: int
    device_indexes: list[int]
    ended_at: datetime | None
    acknowledged_at: datetime | None
    lease_until: datetime
    leaving: str | None
    waits_for: str | None
    loading: str | None
    train_seconds: float
    steps: int


# By their primary key, whatever the statistics say: those of a fleet that was idle lately know of no live placement, so that
# Postgres would read all live ones by an index of these. Concatenated, the node's id is in no index either.
_LOCK_PLACEMENTS = PreparedStatement(
    select(*(getattr(Placement, name) for name in HeldPlacement._fields))
    .join(Node, Node.id == Placement.node_id.concat(""))
    .where(among_ids(Placement.id), *_OWN)
    .order_by(Placement.id)
    .with_for_update(of=Placement)
)
_now, _until = (bindparam(name, type_=Placement.lease_until.type) for name in ("now", "until"))
_RENEW = PreparedStatement(
    update(Placement)
    .where(Placement.id == any_(bindparam("ids", type_=ARRAY(String))))
    .values(
        heartbeat_at=_now,
        acknowledged_at=func.coalesce(Placement.acknowledged_at, _now),
        lease_until=case((Placement.leaving.is_(None), _until), else_=Placement.lease_until),
    )
)


def lock_placements(session: Session, node_id: str, credential: bytes, ids: Collection[str]) -> list[HeldPlacement]:
    """Those of these placements that are the node's, locked, ended ones too; none where it has another credential."""
    said = {"node": node_id, "credential": credential, "ids": list(ids)}
    return [HeldPlacement(*row) for row in _LOCK_PLACEMENTS.run(session.connection(), said)]


def renew(session: Session, ids: Collection[str], now: datetime, until: datetime) -> None:
    """Note the heartbeat of locked placements and renew their leases, but not of those that were asked to leave."""
    if ids:
        _RENEW.run(session.connection(), {"ids": list(ids), "now": now, "until": until})


def lock_node(session: Session, node_id: str, credential: bytes) -> tuple[Node, datetime] | None:
    """The node with this credential, locked, and the time; None if there is none. It is not in the session."""
    rows = _LOCK_NODE.run(session.connection(), {"node": node_id, "credential": credential})
    for now, *values in rows:
        return Node(**{column.key: value for column, value in zip(_NODE, values, strict=True)}), now
    return None


def write_node(session: Session, node: Node, bases: list[str] | None) -> None:
    """Write what a heartbeat may change of the locked node, and its bases if these differ from what it has."""
    said: Mapping[str, Any] = {"node": node.id, **{f"new_{name}": getattr(node, name) for name in _WRITTEN}}
    if bases == node.bases:
        _WRITE_NODE.run(session.connection(), said)
    else:
        _WRITE_NODE_AND_BASES.run(session.connection(), {**said, "new_bases": None if bases is None else json.dumps(bases)})
