"""Batches concurrent submissions of a tenant into one transaction, each accepted or refused on its own. Knows no HTTP.

A burst of submissions then costs the database a fraction of the round trips.
"""

import asyncio
import logging
from dataclasses import dataclass

from sqlalchemy.exc import OperationalError, TimeoutError

from contract.task_spec import TaskSpec
from service.audit.audit_trail import Note, add_entries
from service.background.queue import Queue
from service.database.engine import Database
from service.http.problems import Problem
from service.http.request_coalescer import RequestCoalescer, in_thread
from service.tasks import actions
from service.tasks.models import Task
from service.tasks.resource import render_new
from service.tenants.api_keys import Principal

log = logging.getLogger(__name__)

_MOST = 16  # submissions per transaction
_REST = 2.0  # pause after a tenant's batch, as a multiple of its duration, for polls to run; without it they took twice as long
_AWAY = (OperationalError, TimeoutError)  # the commit's outcome is unknown


@dataclass(frozen=True, eq=False)
class Submission:
    """One request's spec, and its entry for the audit log."""

    spec: TaskSpec
    note: Note


@dataclass(frozen=True)
class Made:
    """A created task, and its resource as JSON."""

    id: str
    version: int
    text: bytes


class BatchedSubmissions:
    """Coalesces submissions; each batch holds `seat` while it runs."""

    def __init__(self, queue: Queue, seat: asyncio.Semaphore) -> None:
        self._queue = queue
        self._coalescer = RequestCoalescer(in_thread(self._make), rest=_REST, most=_MOST, turn=seat)

    async def make(self, db: Database, principal: Principal, submission: Submission) -> Made | None:
        """Create the task, in the calling tenant's `db`. Raises SpecRefused, QuotaExceeded.

        None if the batch failed for a reason that may be another submission's: nothing was created, and the caller submits
        alone.
        """
        (made,) = await asyncio.gather(self._coalescer.ask(db, principal, submission), return_exceptions=True)
        if isinstance(made, Made) or made is None:
            return made
        if isinstance(made, (Problem, *_AWAY)) or not isinstance(made, Exception):
            raise made
        log.warning("tasks were not made together, but each alone: %s", type(made).__name__)
        return None

    def _make(self, db: Database, principal: Principal, asked: list[Submission]) -> dict[Submission, Made | Problem]:
        with db.of(principal.tenant_id).begin() as session:
            wanted = [actions.Wanted(one.spec, one.note.request_id) for one in asked]
            outcomes = zip(asked, actions.create_all(session, self._queue, principal, wanted), strict=True)
            made = {one: _note(one, task) if isinstance(task, Task) else task for one, task in outcomes}
            add_entries(session, [one.note for one in asked])
        return made


def _note(submission: Submission, task: Task) -> Made:
    submission.note.made(task.id)
    resource = render_new(task, submission.spec.search_space.size)
    return Made(task.id, task.version, resource.model_dump_json().encode())
