"""How long a database connection may wait: for a statement, for a lock, for its own process in the middle of a transaction.

Postgres itself enforces the three. A server that is stopped or cut off enforces nothing, so a connection of ours also gives up
by itself, a moment after the statement's time. Knows no settings and no SQLAlchemy.
"""

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready

_MARGIN_SECONDS = 2.0  # beyond the statement's time, in which the server's own error may come

T = TypeVar("T")


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `lock` counts for each lock; `idle` is the time between two statements of one transaction."""

    statement: float = 15.0
    lock: float | None = 10.0
    idle: float = 60.0

    @property
    def options(self) -> str:
        """As libpq takes them with a new connection."""
        said = {"statement_timeout": self.statement, "idle_in_transaction_session_timeout": self.idle}
        if self.lock is not None:
            said["lock_timeout"] = self.lock
        return " ".join(f"-c {name}={seconds * 1000:.0f}" for name, seconds in said.items())

    @property
    def answer(self) -> float:
        """After which a server that has said nothing is taken to be gone."""
        return self.statement + _MARGIN_SECONDS


class ServerSilent(psycopg.OperationalError):
    """The server has not answered for longer than it lets a statement take. What it was asked may still be done."""


def _until(answer: PQGen[T], seconds: float, pgconn: Any) -> PQGen[T]:
    """What psycopg waits for, given up after `seconds`. Closes the connection then: it is in the middle of something."""
    deadline = time.monotonic() + seconds
    try:
        wanted = next(answer)
        while True:
            ready = yield wanted
            if ready == Ready.NONE and time.monotonic() > deadline:
                pgconn.finish()
                raise ServerSilent(f"the server has said nothing for {seconds:g} s")
            wanted = answer.send(ready)
    except StopIteration as ended:
        result: T = ended.value
        return result


class Connection(psycopg.Connection[Any]):
    """Waits no longer than `answer_seconds` for each answer."""

    answer_seconds = Timeouts().answer

    def wait(self, gen: PQGen[T], *how: Any, **named: Any) -> T:
        return super().wait(_until(gen, self.answer_seconds, self.pgconn), *how, **named)


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """The same, for an event loop."""

    answer_seconds = Timeouts().answer

    async def wait(self, gen: PQGen[T], *how: Any, **named: Any) -> T:
        return await super().wait(_until(gen, self.answer_seconds, self.pgconn), *how, **named)
