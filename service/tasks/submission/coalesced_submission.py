"""Creates tasks: concurrent submissions of a tenant share one transaction, each accepted or refused on its own.

A burst of submissions then costs the database a fraction of the round trips.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from contract.task_spec import TaskSpec
from service.audit.audit_trail import Note, add_entries
from service.database.engine import Database
from service.graders.endpoint_graders import EndpointGraders
from service.http.problems import Problem
from service.idempotency.idempotency_store import Claim, KeyedRequest, Replayed, claim_in
from service.messaging.queue import Queue
from service.tasks import actions
from service.tasks.models import Task
from service.tasks.polling.poll_cache import etag_of
from service.tasks.resource import render_new
from service.tasks.submission.spec_checks import deadline_over
from service.tenants.api_keys import Principal
from service.tenants.request_coalescer import RequestCoalescer, in_thread
from service.usage.quotas import MAX_SHARED_TASKS

log = logging.getLogger(__name__)

_MAX_SHARED_JOBS = 64  # most jobs of a task that shares a transaction: a larger one would delay the others
# pause after a shared transaction, as a multiple of its duration; without the pause, polls took twice as long
_COOLDOWN_FACTOR = 2.0
_NOT_RETRIED = (
    OperationalError,
    PoolTimeout,
)  # the commit may have happened; or no connection was free, and one would wait again


@dataclass(frozen=True, eq=False)
class Submission:
    """One request's spec, its entry for the audit log, its Idempotency-Key, and its trace."""

    spec: TaskSpec
    note: Note
    keyed_request: KeyedRequest | None = None
    traceparent: str | None = None


@dataclass(frozen=True)
class CreatedResponse:
    """The answer to a submission: the created task's resource as JSON, and headers."""

    text: bytes
    headers: dict[str, str]


Outcome = CreatedResponse | Problem | Replayed


@dataclass(frozen=True)
class _Submitter:
    """A tenant; equal for requests of all its API keys, so that their submissions share transactions. `db` and
    `principal` are of the request that opened the group: only their tenant counts."""

    tenant_id: str
    db: Database = field(compare=False)
    principal: Principal = field(compare=False)


class SubmissionCoalescer:
    """Coalesces submissions; each transaction holds `semaphore` while it runs."""

    def __init__(self, queue: Queue, graders: EndpointGraders, semaphore: asyncio.Semaphore) -> None:
        self._queue, self._graders, self._semaphore = queue, graders, semaphore
        self._coalescer = RequestCoalescer(
            in_thread(self._create_in_one_transaction),
            cooldown_factor=_COOLDOWN_FACTOR,
            max_group_size=MAX_SHARED_TASKS,
            semaphore=semaphore,
        )

    async def submit(self, db: Database, principal: Principal, submission: Submission) -> CreatedResponse:
        """Create the task, in the calling tenant's `db`. Raises SpecRefused, QuotaExceeded, KeyReused, InFlight, or Replayed
        where the key has an answer.

        If a shared transaction fails for a reason that may be another submission's, nothing was created; each then runs in one
        of its own.
        """
        submitter = _Submitter(principal.tenant_id, db, principal)
        if submission.spec.search_space.size > _MAX_SHARED_JOBS:
            return await self._create_alone(submitter, submission)
        # The coalescer runs `_create_in_one_transaction` for all that one tenant sent meanwhile (request_coalescer.py).
        # `gather` returns both kinds of exception alike: one that the group raised, and one that is this submission's outcome
        (created,) = await asyncio.gather(self._coalescer.submit(submitter, submission), return_exceptions=True)
        if isinstance(created, Exception) and not isinstance(created, (Problem, Replayed, *_NOT_RETRIED)):
            log.warning("shared submission transaction failed (%s); creating each task in its own", type(created).__name__)
            return await self._create_alone(submitter, submission)
        return _raise_or_return(created)

    async def _create_alone(self, submitter: _Submitter, submission: Submission) -> CreatedResponse:
        async with self._semaphore:
            return _raise_or_return(
                (await run_in_threadpool(self._create_in_one_transaction, submitter, [submission]))[submission]
            )

    def _create_in_one_transaction(self, submitter: _Submitter, submissions: list[Submission]) -> dict[Submission, Outcome]:
        principal, outcomes = submitter.principal, dict[Submission, Outcome]()
        # `for_tenant` again: `db` is bound to the audit note of the request that opened the group (authentication.py), and
        # each submission adds an entry of its own
        with submitter.db.for_tenant(submitter.tenant_id).begin() as session:
            claims = _claim(session, principal, submissions, outcomes)
            pending = [submission for submission in submissions if submission not in outcomes]
            requests = [actions.NewTaskRequest(one.spec, one.note.request_id, one.traceparent) for one in pending]
            created = actions.create_all(session, self._queue, self._graders, principal, requests) if requests else []
            for submission, task in zip(pending, created, strict=True):
                submission.note.reset()  # forgets what a shared transaction that failed before this one recorded
                outcomes[submission] = _answer(session, submission, task, claims.get(submission))
            add_entries(session, [submission.note for submission in pending])
        return outcomes


def _raise_or_return(outcome: Outcome | BaseException | None) -> CreatedResponse:
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome is not None  # a transaction has an outcome for each of its submissions
    return outcome


def _claim(
    session: Session, principal: Principal, submissions: Sequence[Submission], outcomes: dict[Submission, Outcome]
) -> dict[Submission, Claim]:
    """Claim the keys of the submissions that have one, in key order. Where a key is taken, the problem or the stored answer
    goes into `outcomes`."""
    claims: dict[Submission, Claim] = {}
    keyed = [(submission.keyed_request, submission) for submission in submissions if submission.keyed_request is not None]
    for keyed_request, submission in sorted(keyed, key=lambda pair: pair[0].key):
        try:
            claims[submission] = claim_in(session, principal, keyed_request)
        except (Problem, Replayed) as answered:
            outcomes[submission] = answered
    return claims


def _answer(session: Session, submission: Submission, task: Task | Problem, claim: Claim | None) -> CreatedResponse | Problem:
    """The submission's outcome; its key keeps the answer, or is free again after a refusal."""
    if isinstance(task, Problem):
        if claim is not None:
            claim.release_in(session)
        return task
    submission.note.add_created(task.id)
    late = list(deadline_over(submission.spec.deadline, task.created_at))
    resource = render_new(task, submission.spec.search_space.size).model_copy(update={"problems": late or None})
    headers = {"Location": f"/v1/tasks/{task.id}", "ETag": etag_of(task.version)}
    if claim is not None:
        claim.store_answer(session, 201, resource, headers)
    return CreatedResponse(resource.model_dump_json().encode(), headers)
