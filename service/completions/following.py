"""Follows a request from the API process that holds its client's connection: yields pieces as they come.

It is the one that notices an executor's end, since nobody else waits: the request is then given to another if nothing was read
of its answer. Holds neither a thread nor a database connection between two reads.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from contract.messages.completion_messages import CompletionPiece
from service.completions import requests
from service.completions.errors import CompletionLost, NoExecutor
from service.completions.models import ENDED, RUNNING, WAITING, CompletionPieces, CompletionRequest
from service.completions.refusals import problem_of
from service.completions.requests import ASKER_SECONDS
from service.database.checked_json import UnreadValue
from service.database.engine import Database, clock
from service.http.problems import Problem, invalid_field
from service.messaging.queue import Queue
from service.settings import Settings
from service.tasks.polling.event_stream import heard
from service.tasks.polling.long_polling import ChangeListener

_TICK_SECONDS = 0.5
_PACE_SECONDS = 0.02  # between two reads; what comes meanwhile is read together


@dataclass(frozen=True)
class _Read:
    pieces: list[CompletionPiece]
    over: bool
    problem: Problem | None = None


class Following:
    """One request. `gone` says whether its client has gone; it raises a Problem where the client may not ask any more."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        queue: Queue,
        listener: ChangeListener,
        request_id: str,
        gone: Callable[[], Awaitable[bool]],
    ) -> None:
        self._settings, self._db, self._queue, self._listener = settings, db, queue, listener
        self._id, self._gone = request_id, gone
        self._last = 0
        self._offered_at: datetime | None = None  # again, to other executors
        self.attempt = 1  # rises where the request is given to another executor: its answer begins anew
        self.read = False  # whether any of the answer has been handed on, so that it cannot begin anew

    async def pieces(self) -> AsyncGenerator[CompletionPiece, None]:
        """Raises a Problem where the request cannot be answered. Ends the request, however it is left."""
        try:
            with self._listener.watch(self._id) as changed:
                while not await self._gone():
                    changed.clear()
                    found = await run_in_threadpool(self._look)
                    for piece in found.pieces:
                        self._last = piece.number
                        yield piece
                    if found.problem is not None:
                        raise found.problem
                    if found.over:
                        return
                    if self._listener.released:
                        raise CompletionLost("The service is about to restart; try again.")
                    await asyncio.sleep(_PACE_SECONDS)
                    await heard(changed, _TICK_SECONDS)
        finally:
            # in a task of its own, since the one that runs this may be cancelled
            await asyncio.shield(asyncio.ensure_future(run_in_threadpool(self._end)))

    def _end(self) -> None:
        with self._db.begin() as session:
            requests.end(session, self._id)

    def _look(self) -> _Read:
        with self._db.begin() as session:
            row = session.get(CompletionRequest, self._id)
            if row is None:
                return _Read([], True, CompletionLost("The request was removed."))
            of = select(CompletionPieces.content).where(
                CompletionPieces.request_id == self._id, CompletionPieces.number > self._last
            )
            found = list[CompletionPiece]()
            for piece in session.scalars(of.order_by(CompletionPieces.number)):
                if isinstance(piece, UnreadValue):
                    return _Read(found, True, CompletionLost(f"The answer ends here: {piece.why}. Ask again."))
                found.append(piece)
            failed = next((piece for piece in found if piece.failed is not None), None)
            if failed is not None:
                return _Read([piece for piece in found if piece is not failed], True, _problem_of(failed))
            if found and found[-1].over:
                return _Read(found, True)
            return self._supervise(session, row, found)

    def _supervise(self, session: Session, row: CompletionRequest, found: list[CompletionPiece]) -> _Read:
        """Renew the sign that somebody waits, also while the answer comes; without news, look whether the executor still
        lives."""
        now = clock(session)
        if row.state == ENDED:
            return _Read(found, True, CompletionLost("The adapter was deleted, or the request ended elsewhere."))
        lapsed = not found and row.state == RUNNING and row.claimed_until is not None and row.claimed_until < now
        aging = row.asker_until < now + timedelta(seconds=ASKER_SECONDS / 2)
        waited = (now - (self._offered_at or row.created_at)).total_seconds()
        unanswered = row.state == WAITING and (row.refusal is not None or waited > self._settings.completion_wait_seconds)
        if not lapsed and not aging and now < row.deadline and not unanswered:
            return _Read(found, False)  # without a lock, which an executor that claims it would skip
        session.refresh(row, with_for_update=True)
        row.asker_until = now + timedelta(seconds=ASKER_SECONDS)
        if now >= row.deadline:
            seconds = self._settings.completion_seconds
            return _Read(found, True, CompletionLost(f"The answer took longer than {seconds:g} s; lower max_tokens."))
        if lapsed and row.claimed_until is not None and row.claimed_until < now:
            if self.read or not requests.give_again(session, self._queue, row):
                return _Read([], True, CompletionLost("The executor ended before the answer did; ask again."))
            self._last, self.attempt, self._offered_at = 0, self.attempt + 1, now
            return _Read([], False)
        if row.state == WAITING and row.refusal is not None:
            return _Read([], True, problem_of(row.refusal))
        if row.state == WAITING and waited > self._settings.completion_wait_seconds:
            return _Read([], True, NoExecutor(_nobody(row), retry_after=10))
        return _Read(found, False)


def _nobody(row: CompletionRequest) -> str:
    how = f"base model {row.base_model} in {row.precision}"
    alone = " and takes nobody else, since the adapter's task shares with nobody" if row.dedicated else ""
    return (
        f"No executor that runs {how}{alone} took the request in time: the base is still being loaded, which goes on, or the "
        "executor has no room. Try again; to serve an adapter for good, see docs/OPERATIONS.md."
    )


def _problem_of(piece: CompletionPiece) -> Problem:
    failed = piece.failed
    assert failed is not None
    if failed.param is not None:
        return invalid_field(failed.param, failed.code, failed.message)
    return CompletionLost(f"{failed.message[:1].upper()}{failed.message[1:]}.", reason=failed.code)
