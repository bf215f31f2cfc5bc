"""Requests for completions: made, cancelled, given to an executor again, ended. Each step is within the caller's transaction.

Postgres is the only truth: an executor learns of a request from its row, and so does the API process that waits for the answer.
"""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from contract.messages.completion_messages import CompletionWork
from service.completions import limits
from service.completions.models import ENDED, RUNNING, WAITING, CompletionPieces, CompletionRequest
from service.database.engine import after_commit, clock, new_id
from service.messaging.queue import Queue, QueueJob
from service.settings import Settings
from service.tasks.lifecycle.change_notices import CHANNEL, IDS_PER_NOTICE
from service.tenants.api_keys import Principal

ASKER_SECONDS = 15.0  # without a sign of the API process that waits, after which nobody does
MOST_ATTEMPTS = 2  # executors that a request is given to, where the first ends before it has sent anything


@dataclass(frozen=True)
class AskedModel:
    """A base alone, or with an adapter, or with the newest checkpoint of a job. dedicated: its task shares an executor with
    nobody."""

    base_model: str
    base_revision: str
    precision: str
    adapter_id: str | None = None
    job_id: str | None = None
    dedicated: bool = False


def make(
    session: Session, settings: Settings, queue: Queue, principal: Principal, model: AskedModel, work: CompletionWork
) -> str:
    """A new request, its id. Wakes who answers, and who starts an executor where nobody does. Raises TooManyCompletions or
    QuotaExceeded."""
    now = clock(session)
    choices = work.n * max(1, len(work.prompts))
    limits.check(session, settings, principal, choices * work.max_tokens)
    row = CompletionRequest(
        id=work.request_id,
        tenant_id=principal.tenant_id,
        base_model=model.base_model,
        base_revision=model.base_revision,
        precision=model.precision,
        adapter_id=model.adapter_id,
        job_id=model.job_id,
        dedicated=model.dedicated,
        work=work.model_dump(mode="json"),
        reserved_tokens=choices * work.max_tokens,
        state=WAITING,
        asker_until=now + timedelta(seconds=ASKER_SECONDS),
        deadline=now + timedelta(seconds=settings.completion_seconds),
    )
    session.add(row)
    notify(session, wakes_executors(model.base_revision))
    after_commit(session, lambda: queue.wake(QueueJob.ANSWER))
    return row.id


def new_request_id() -> str:
    return new_id("cmpl")


def wakes_executors(base_revision: str) -> str:
    """What an executor of this base listens for."""
    return f"completions:{base_revision}"


def notify(session: Session, *ids: str) -> None:
    """Wake those that wait for these ids, after the commit."""
    for at in range(0, len(ids), IDS_PER_NOTICE):
        session.execute(select(func.pg_notify(CHANNEL, " ".join(ids[at : at + IDS_PER_NOTICE]))))


def end(session: Session, request_id: str) -> None:
    """Nobody waits for the request any more, or it is answered: its prompt and its pieces are removed."""
    row = session.get(CompletionRequest, request_id, with_for_update=True)
    if row is None:
        return
    session.execute(delete(CompletionPieces).where(CompletionPieces.request_id == request_id))
    row.work = {}
    if row.state != ENDED:
        claimed = row.state == RUNNING
        row.state, row.ended_at = ENDED, clock(session)
        if claimed:
            notify(session, wakes_executors(row.base_revision))


def give_again(session: Session, queue: Queue, row: CompletionRequest) -> bool:
    """Offer a request whose executor has ended to others, if none of its answer was read. Whether it was offered."""
    if row.attempts >= MOST_ATTEMPTS:
        return False
    session.execute(delete(CompletionPieces).where(CompletionPieces.request_id == row.id))
    row.state, row.executor, row.placement_id, row.claimed_until, row.last_piece = WAITING, None, None, None, 0
    row.refusal = None  # of an earlier wait
    notify(session, wakes_executors(row.base_revision))
    after_commit(session, lambda: queue.wake(QueueJob.ANSWER))
    return True
