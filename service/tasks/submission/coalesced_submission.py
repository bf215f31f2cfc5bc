"""Creates tasks: concurrent submissions of a tenant share one transaction, each accepted or refused on its own. Knows no HTTP.

A burst of submissions then costs the database a fraction of the round trips.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError, TimeoutError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from contract.task_spec import TaskSpec
from service.audit.audit_trail import Note, add_entries
from service.database.engine import Database
from service.http.problems import Problem
from service.idempotency.idempotency_store import Claim, Keyed, Replayed, claim_in
from service.messaging.queue import Queue
from service.tasks import actions
from service.tasks.models import Task
from service.tasks.polling.poll_cache import etag_of
from service.tasks.resource import render_new
from service.tenants.api_keys import Principal
from service.tenants.request_coalescer import RequestCoalescer, in_thread

log = logging.getLogger(__name__)

_MOST = 16  # submissions per transaction
_QUICK_JOBS = 64  # most jobs of a task that shares a transaction: a larger one would delay the others
_REST = 2.0  # pause after a tenant's batch, as a multiple of its duration, for polls to run; without it they took twice as long
_AWAY = (OperationalError, TimeoutError)  # the commit's outcome is unknown


@dataclass(frozen=True, eq=False)
class Submission:
    """One request's spec, its entry for the audit log, and its Idempotency-Key."""

    spec: TaskSpec
    note: Note
    request: Keyed | None = None


@dataclass(frozen=True)
class Made:
    """The answer to a submission: the created task's resource as JSON, and headers."""

    text: bytes
    headers: dict[str, str]


Outcome = Made | Problem | Replayed


class SubmissionCoalescer:
    """Coalesces submissions; each transaction holds `seat` while it runs."""

    def __init__(self, queue: Queue, seat: asyncio.Semaphore) -> None:
        self._queue, self._seat = queue, seat
        self._coalescer = RequestCoalescer(in_thread(self._make), rest=_REST, most=_MOST, turn=seat)

    async def make(self, db: Database, principal: Principal, submission: Submission) -> Made:
        """Create the task, in the calling tenant's `db`. Raises SpecRefused, QuotaExceeded, KeyReused, StillInHand, or Replayed
        where the key has an answer.

        If a shared transaction fails for a reason that may be another submission's, nothing was created; each is made alone.
        """
        if submission.spec.search_space.size > _QUICK_JOBS:
            return await self._alone(db, principal, submission)
        (made,) = await asyncio.gather(self._coalescer.ask(db, principal, submission), return_exceptions=True)
        if isinstance(made, Exception) and not isinstance(made, (Problem, Replayed, *_AWAY)):
            log.warning("tasks were not made together, but each alone: %s", type(made).__name__)
            return await self._alone(db, principal, submission)
        return _answered(made)

    async def _alone(self, db: Database, principal: Principal, submission: Submission) -> Made:
        async with self._seat:
            return _answered((await run_in_threadpool(self._make, db, principal, [submission]))[submission])

    def _make(self, db: Database, principal: Principal, asked: list[Submission]) -> dict[Submission, Outcome]:
        outcomes: dict[Submission, Outcome] = {}
        with db.of(principal.tenant_id).begin() as session:
            claims = _claim(session, principal, asked, outcomes)
            open_ = [one for one in asked if one not in outcomes]
            wanted = [actions.Wanted(one.spec, one.note.request_id) for one in open_]
            made = actions.create_all(session, self._queue, principal, wanted) if wanted else []
            for one, task in zip(open_, made, strict=True):
                one.note.begin()
                outcomes[one] = _answer(session, one, task, claims.get(one))
            add_entries(session, [one.note for one in open_])
        return outcomes


def _answered(outcome: Outcome | BaseException | None) -> Made:
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome is not None  # a batch has an outcome for each of its submissions
    return outcome


def _claim(
    session: Session, principal: Principal, asked: Sequence[Submission], outcomes: dict[Submission, Outcome]
) -> dict[Submission, Claim]:
    """Claim the keys of those that have one; the `outcomes` of those whose key is taken."""
    claims: dict[Submission, Claim] = {}
    keyed = [(one.request, one) for one in asked if one.request is not None]
    for request, one in sorted(keyed, key=lambda pair: pair[0].key):
        try:
            claims[one] = claim_in(session, principal, request)
        except (Problem, Replayed) as answered:
            outcomes[one] = answered
    return claims


def _answer(session: Session, submission: Submission, task: Task | Problem, claim: Claim | None) -> Made | Problem:
    """The submission's outcome; its key keeps the answer, or is free again after a refusal."""
    if isinstance(task, Problem):
        if claim is not None:
            claim.let_go_in(session)
        return task
    submission.note.made(task.id)
    resource = render_new(task, submission.spec.search_space.size)
    headers = {"Location": f"/v1/tasks/{task.id}", "ETag": etag_of(task.version)}
    if claim is not None:
        claim.keep(session, 201, resource, headers)
    return Made(resource.model_dump_json().encode(), headers)
