"""Starts an executor for who asks a base that none answers for (an answer session), or says why it does not.

Only on devices that no placement holds; a task that is placed there ends the session in its own transaction
(fleet/answer_sessions.py), so no task waits for one. A base has one session, which all tenants share, but for adapters of tasks
that share with nobody: theirs is their tenant's alone. Lock order: starts, one node.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.completions import refusals
from service.completions.asked_bases import Wanted, asked_bases, unanswered
from service.completions.models import CompletionRequest
from service.completions.refusals import Refusal
from service.completions.requests import notify
from service.completions.session_nodes import fleet_for, free_devices, why_none
from service.database.engine import clock, new_id
from service.dependencies import Dependencies
from service.fleet.lease_clock import lease_until
from service.fleet.models import NODE_LOCK, AnswerSession, BaseModel, Node
from service.fleet.node_health.quarantine import by_trust
from service.settings import Settings
from service.tasks.lifecycle.placements import touch_nodes

log = logging.getLogger(__name__)

_LOOKS = 3  # at the fleet, where its free device was taken meanwhile
_STARTS = 0x616E7377  # "answ"; an advisory lock of this database: starts wait for each other, so limits hold


def start_for_who_asks(dependencies: Dependencies) -> int:
    """Start sessions for the requests that nobody answers for, and tell the others why there is none. Returns how many; each in
    a transaction of its own."""
    with dependencies.db.begin() as session:
        wanted = asked_bases(session)
    return sum(_start(dependencies, one, tenants) for one, tenants in wanted.items())


def _start(dependencies: Dependencies, wanted: Wanted, tenants: Sequence[str]) -> bool:
    for _ in range(_LOOKS):
        with dependencies.db.begin() as session:
            started = _try(session, dependencies, wanted, tenants)
        if started is not None:
            return started
    return False  # the reconciler looks again


def _try(session: Session, dependencies: Dependencies, wanted: Wanted, tenants: Sequence[str]) -> bool | None:
    """Whether a session was started; None where the device was taken meanwhile."""
    settings = dependencies.settings
    session.execute(select(func.pg_advisory_xact_lock(_STARTS)))
    theirs = unanswered(session, wanted, tenants)
    if not theirs:
        return False
    base, now = session.get(BaseModel, wanted.base_model), clock(session)
    if base is None or not base.enabled:
        return _refuse(session, wanted, dict.fromkeys(theirs, refusals.disabled(wanted.base_model)))
    at_limit = {tenant: refusal for tenant in theirs if (refusal := _limit(session, settings, tenant, now)) is not None}
    payer = next((tenant for tenant in theirs if tenant not in at_limit), None)
    if payer is None:
        return _refuse(session, wanted, at_limit)
    fleet = fleet_for(session, settings, base, wanted, now)
    if (node := fleet.open) is None:
        return _refuse(session, wanted, dict.fromkeys(theirs, why_none(session, settings, wanted, fleet, now)))
    return _hold(session, dependencies, wanted, payer, node, now)


def _hold(session: Session, dependencies: Dependencies, wanted: Wanted, payer: str, node: Node, now: datetime) -> bool | None:
    session.refresh(node, with_for_update=NODE_LOCK)
    free = by_trust(node, free_devices(session, [node])[node.id])
    if not free or node.status != "ready" or node.takes_nothing_new:
        return None
    made = AnswerSession(
        id=new_id("answers"),
        node_id=node.id,
        device_index=free[0],
        base_model=wanted.base_model,
        base_revision=wanted.base_revision,
        precision=wanted.precision,
        tenant_id=payer,
        dedicated=wanted.alone is not None,
        lease_until=lease_until(now, dependencies.settings),
        used_at=now,
    )
    session.add(made)
    touch_nodes(session, dependencies.wakeups, node.id)
    log.info("base %s is held on node %s to answer who asks", wanted.base_model, node.name)
    return True


def _limit(session: Session, settings: Settings, tenant: str, now: datetime) -> Refusal | None:
    """Why the tenant may cause no more sessions, if it may not."""
    own = select(AnswerSession).where(AnswerSession.ended_at.is_(None), AnswerSession.tenant_id == tenant)
    held, most, idle = session.scalars(own).all(), settings.completion_sessions_at_once, settings.completion_idle_seconds
    if len(held) < most:
        return None
    left = min(one.used_at for one in held) + timedelta(seconds=idle) - now
    return refusals.at_limit(most, {one.base_model for one in held}, idle, left.total_seconds())


def _refuse(session: Session, wanted: Wanted, why: Mapping[str, Refusal]) -> bool:
    """Tell the requests that wait for it why, by tenant. Returns False: none was started."""
    row = CompletionRequest
    waits = select(row).where(*wanted.requests, row.tenant_id.in_(why)).order_by(row.id).with_for_update()
    told = session.scalars(waits).all()
    for one in told:
        one.refusal = why[one.tenant_id].model_dump(mode="json")
    notify(session, *(one.id for one in told))
    return False
