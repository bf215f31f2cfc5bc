"""Requests given to executors. An executor speaks under the token of one of its placements, and serves that task's base; or of
an answer session, which holds a base without a task.

A claim lasts CLAIM_SECONDS and is renewed whenever its executor asks or sends, while the executor may answer the request
(audience.py): who is on it changes.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import and_, select, update
from sqlalchemy.orm import Session

from contract.compatibility.lenient_documents import why_unreadable
from contract.messages.completion_messages import CheckpointWeights, CompletionsWanted, CompletionWork
from service.adapters.models import Adapter
from service.completions.audience import Audience, audience_of
from service.completions.models import ENDED, RUNNING, WAITING, CompletionRequest
from service.database.checked_json import required
from service.database.engine import clock
from service.fleet.answer_sessions import own_session
from service.fleet.models import AnswerSession, Placement
from service.fleet.reports import stale
from service.fleet.worker_authentication import check_placement, token_refused
from service.settings import Settings
from service.tasks.lifecycle.placements import FINISHED
from service.tasks.models import Job, Task
from service.tasks.stored_specs import config_of

log = logging.getLogger(__name__)

CLAIM_SECONDS = 8.0


@dataclass(frozen=True)
class Carrier:
    """The placement or answer session under which an executor speaks, and its base. takes: whether it may take more requests,
    of its audience."""

    placement_id: str
    node_id: str
    base_revision: str
    base_model: str
    precision: str
    takes: bool
    audience: Audience


def carrier_of(session: Session, settings: Settings, placement_id: str, bearer: str | None) -> Carrier:
    """Raises PlacementTokenRefused or FenceStale. A placement whose task has ended there carries what it has, while its lease
    lasts."""
    if (asked := own_session(session, settings, placement_id, bearer)) is not None:
        return _session_carrier(asked)
    fence = check_placement(settings, placement_id, bearer)
    found = session.execute(
        select(Placement, Task).join(Task, Task.id == Placement.task_id).where(Placement.id == placement_id)
    ).one_or_none()
    if found is None or found.Placement.fence != fence:
        raise token_refused(placement_id)
    placement, task = found.Placement, found.Task
    over = placement.ended_at is not None and placement.end_reason != FINISHED
    if over or task.fence != placement.fence or placement.lease_until < clock(session):
        raise stale(placement)
    return Carrier(
        placement.id,
        placement.node_id,
        task.base_revision,
        task.base_model,
        task.precision,
        takes=placement.ended_at is None and placement.leaving is None,
        audience=audience_of([(task.tenant_id, placement.max_slowdown is not None), *_beside(session, placement)]),
    )


def _beside(session: Session, placement: Placement) -> list[tuple[str | None, bool]]:
    """Who else is on the placement's executor, as audience_of takes it. A session may be there once the placement has ended."""
    tasks = select(Task.tenant_id, Placement.max_slowdown.is_not(None)).join(Placement, Placement.task_id == Task.id)
    same = and_(Placement.node_id == placement.node_id, Placement.device_indexes == placement.device_indexes)
    live = session.execute(tasks.where(same, Placement.ended_at.is_(None), Placement.id != placement.id))
    held = select(AnswerSession).where(AnswerSession.node_id == placement.node_id, AnswerSession.ended_at.is_(None))
    sessions = session.scalars(held.where(AnswerSession.device_index.in_(placement.device_indexes)))
    return [*((tenant, shares) for tenant, shares in live), *(_of_session(one) for one in sessions)]


def _of_session(held: AnswerSession) -> tuple[str | None, bool]:
    return (held.tenant_id, False) if held.dedicated else (None, True)


def _session_carrier(asked: AnswerSession) -> Carrier:
    base = asked.base_revision, asked.base_model, asked.precision
    return Carrier(asked.id, asked.node_id, *base, takes=True, audience=audience_of([_of_session(asked)]))


def renew(session: Session, carrier: Carrier, said: CompletionsWanted) -> list[str]:
    """Renew the claims of what the executor has. Returns those that nobody waits for, or that it may not answer now."""
    now = clock(session)
    row = CompletionRequest
    own = [row.id.in_(said.held), row.executor == said.executor, row.state == RUNNING, row.asker_until > now]
    own += carrier.audience.conditions
    # in the order in which pieces of them are taken (answers.py), or the two could wait for each other
    locked = select(row.id).where(*own).order_by(row.id).with_for_update()
    kept = set(session.scalars(locked)) if said.held else set()
    if kept:
        until = now + timedelta(seconds=CLAIM_SECONDS)
        session.execute(update(row).where(row.id.in_(kept)).values(claimed_until=until, placement_id=carrier.placement_id))
        _used(session, carrier, now)
    return [id for id in said.held if id not in kept]


def claim(session: Session, carrier: Carrier, said: CompletionsWanted) -> list[CompletionWork]:
    """Give the executor the oldest requests of its base that it may answer, up to its room."""
    if not said.room or not carrier.takes:
        return []
    now, row = clock(session), CompletionRequest
    base = (row.base_revision == carrier.base_revision, row.base_model == carrier.base_model)
    wanted = select(row).where(row.state == WAITING, *base, row.precision == carrier.precision, row.asker_until > now)
    oldest = wanted.where(*carrier.audience.conditions).order_by(row.created_at).limit(said.room)
    given = []
    for request in session.scalars(oldest.with_for_update(skip_locked=True)):
        work = _work(session, request)
        if work is None:
            request.state, request.ended_at = ENDED, now
            continue
        request.state, request.executor, request.placement_id = RUNNING, said.executor, carrier.placement_id
        request.claimed_until, request.attempts = now + timedelta(seconds=CLAIM_SECONDS), request.attempts + 1
        given.append(work.model_copy(update={"attempt": request.attempts}))
    if given:
        _used(session, carrier, now)
    return given


def _used(session: Session, carrier: Carrier, now: datetime) -> None:
    """An answer session that is asked is not idle; of a placement, nothing."""
    session.execute(update(AnswerSession).where(AnswerSession.id == carrier.placement_id).values(used_at=now))


def _work(session: Session, request: CompletionRequest) -> CompletionWork | None:
    """The request with its adapter as it is now; None where that is gone, or cannot be read: others' requests go on."""
    try:
        return _with_weights(session, request)
    except ValueError as error:  # SpecUnreadable, ResultUnreadable, or of the request's own `work`
        log.error("completion request %s ends: %s", request.id, why_unreadable(error))
        return None


def _with_weights(session: Session, request: CompletionRequest) -> CompletionWork | None:
    """The same. Raises ValueError."""
    work = CompletionWork.model_validate(request.work)
    if request.adapter_id is not None:
        adapter = session.get(Adapter, request.adapter_id)
        if adapter is None or adapter.tenant_id != request.tenant_id or adapter.deleted_at is not None:
            return None
        return work.model_copy(update={"adapter": adapter.folder.files})
    if request.job_id is not None:
        job = session.get(Job, request.job_id)
        if job is None or job.tenant_id != request.tenant_id or (file := required(job.checkpoint)) is None:
            return None
        weights = CheckpointWeights(file=file, plain_alpha=config_of(job.config).plain_alpha)
        return work.model_copy(update={"checkpoint": weights})
    return work


def claimed(session: Session, carrier: Carrier, request_id: str) -> CompletionRequest | None:
    """The request, if it is claimed under this placement or another of its node."""
    found = session.get(CompletionRequest, request_id)
    if found is None or found.state != RUNNING or found.placement_id is None:
        return None
    holder = session.get(Placement, found.placement_id) or session.get(AnswerSession, found.placement_id)
    return found if holder is not None and holder.node_id == carrier.node_id else None


def serves_object(session: Session, request: CompletionRequest, sha256: str) -> bool:
    """Whether the object is a file of the adapter, or the checkpoint, that the request asks."""
    work = _work(session, request)
    if work is None:
        return False
    if work.checkpoint is not None:
        return work.checkpoint.file.sha256 == sha256
    return any(file.sha256 == sha256 for file in work.adapter or ())
