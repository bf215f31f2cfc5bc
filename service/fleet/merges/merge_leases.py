"""Leases of merges on nodes: told to nodes, renewed by heartbeats, checked at each request, ended. Chooses no node.

A merge is a placement without devices to its node. Lock order: node, merged model.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.messages.node_messages import LeaseGrant, Pulse
from contract.messages.placement_messages import MergeWork
from service.database.checked_json import required
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.base_models.base_refs import base_ref
from service.fleet.errors import FenceStale
from service.fleet.lease_clock import lease_until
from service.fleet.merges.merged_readme import readme
from service.fleet.models import BaseModel, Node
from service.fleet.worker_authentication import check_placement, placement_token, token_refused
from service.merges.models import FAILED, QUEUED, RUNNING, MergedModel
from service.settings import Settings

log = logging.getLogger(__name__)

ATTEMPTS = 5  # that store nothing, after which a merge is given up
_PAUSE = timedelta(seconds=10)  # after each
_LIVE = (MergedModel.status == RUNNING, MergedModel.deleted_at.is_(None))


def is_merge(placement_id: str) -> bool:
    """Whether a node's request is about a merge."""
    return placement_id.startswith("merged_")


def among(session: Session, node_id: str, ids: Collection[str]) -> set[str]:
    """Those of these ids that are merges of the node, live or ended."""
    row = MergedModel
    return set(session.scalars(select(row.id).where(row.id.in_([id for id in ids if is_merge(id)]), row.node_id == node_id)))


def wanted(session: Session, settings: Settings, node: Node) -> list[MergeWork]:
    """The node's live merges, as its daemon hears of them; without those that this version cannot describe."""
    now, told = clock(session), []
    live = select(MergedModel, BaseModel).join(BaseModel, BaseModel.name == MergedModel.base_model)
    for merged, base in session.execute(live.where(MergedModel.node_id == node.id, *_LIVE).order_by(MergedModel.id)):
        try:
            told.append(_work(session, settings, merged, base, now))
        except ValueError as error:  # of a newer version, or damaged
            log.warning("merge %s ends on its node, since this version cannot describe it: %s", merged.id, error)
    return told


def _work(session: Session, settings: Settings, merged: MergedModel, base: BaseModel, now: datetime) -> MergeWork:
    """Raises ValueError where its base, or what is stored of it, cannot be read."""
    assert merged.lease_until is not None
    return MergeWork(
        placement_id=merged.id,
        fence=merged.fence,
        token=placement_token(settings, merged.id, merged.fence),
        lease_seconds=max(0.0, (merged.lease_until - now).total_seconds()),
        device_indexes=[],
        base=base_ref(session, base, merged.base_revision, "bf16"),
        tenant_id=merged.tenant_id,
        adapter=required(merged.adapter_files),
        max_shard_bytes=merged.max_shard_bytes,
        stored=required(merged.files),
        readme=readme(merged, base),
    )


def renew(session: Session, settings: Settings, node_id: str, pulses: Collection[Pulse], now: datetime) -> list[LeaseGrant]:
    """Renew the node's merges among these pulses, which do not hang. One that waits for its node is noted and not renewed:
    another node may do it. The caller holds the node's lock."""
    said = {pulse.placement_id: pulse for pulse in pulses if is_merge(pulse.placement_id)}
    own = select(MergedModel).where(MergedModel.id.in_(said), MergedModel.node_id == node_id, *_LIVE)
    grants = []
    for merged in session.scalars(own.order_by(MergedModel.id).with_for_update()):
        if merged.fence == said[merged.id].fence:
            merged.waits_for = said[merged.id].waits_for
            if merged.waits_for is not None:
                continue
            merged.lease_until, merged.acknowledged_at = lease_until(now, settings), merged.acknowledged_at or now
            token = placement_token(settings, merged.id, merged.fence)
            grants.append(LeaseGrant(placement_id=merged.id, fence=merged.fence, seconds=settings.lease_seconds, token=token))
    return grants


def own_merge(session: Session, settings: Settings, merged_id: str, bearer: str | None) -> MergedModel:
    """The token's merge, locked. Raises FenceStale once it has ended, was deleted, is another node's, or its lease is over."""
    fence = check_placement(settings, merged_id, bearer)
    merged = session.scalar(select(MergedModel).where(MergedModel.id == merged_id).with_for_update())
    if merged is None:
        raise token_refused(merged_id)
    over = merged.fence != fence or merged.status != RUNNING or merged.deleted_at is not None
    if over or merged.lease_until is None or merged.lease_until < clock(session):
        raise FenceStale(f"Merge {merged_id} is over here; nothing was changed.")
    return merged


def lose(session: Session, node_id: str, fences: Mapping[str, int], detail: str, counted: bool = True) -> None:
    """Queue the merges anew that a node gave up under these fences; what they have stored stays. counted: as an attempt."""
    ids = [id for id in fences if is_merge(id)]
    live = select(MergedModel).where(MergedModel.id.in_(ids), MergedModel.node_id == node_id, *_LIVE)
    for merged in session.scalars(live.order_by(MergedModel.id).with_for_update()):
        if merged.fence == fences[merged.id]:
            _requeue(merged, clock(session), detail or "its process ended", counted)


def give_back_untaken(session: Session, node_id: str, detail: str) -> None:
    """Queue the merges anew that a node which stops has not taken up; no attempt of theirs is counted."""
    untaken = (MergedModel.node_id == node_id, MergedModel.acknowledged_at.is_(None), *_LIVE)
    for merged in session.scalars(select(MergedModel).where(*untaken).order_by(MergedModel.id).with_for_update()):
        _requeue(merged, clock(session), detail or "its node stops", counted=False)


def end_expired_merges(dependencies: Dependencies) -> None:
    """Queue merges anew whose lease is over. What waited for room on its node's disk has used up no attempt."""
    with dependencies.db.begin() as session:
        now = clock(session)
        over = select(MergedModel).where(MergedModel.lease_until < now, *_LIVE).order_by(MergedModel.id)
        for merged in session.scalars(over.with_for_update(skip_locked=True)):
            _requeue(merged, now, merged.waits_for or "its node did not renew its lease", counted=merged.waits_for is None)


def _requeue(merged: MergedModel, now: datetime, detail: str, counted: bool) -> None:
    log.warning("merge %s leaves node %s: %s", merged.id, merged.node_id, detail)
    merged.attempts += counted
    merged.node_id = merged.lease_until = None
    if merged.attempts >= ATTEMPTS:
        fail(merged, now, f"given up after {ATTEMPTS} attempts; the last one: {detail}")
        return
    merged.status, merged.error = QUEUED, detail
    merged.next_at = now + _PAUSE * merged.attempts


def fail(merged: MergedModel, now: datetime, why: str) -> None:
    """End a merge without a model. What it stored is nobody's."""
    merged.status, merged.error, merged.ended_at, merged.waits_for = FAILED, why, now, None
    merged.files, merged.bytes = [], 0
