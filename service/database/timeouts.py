"""Database timeouts: for a statement, for a lock, and for a transaction that idles between statements.

Postgres enforces these three. A stopped or unreachable server enforces nothing, so our connections also give up by themselves,
2 s after the statement timeout. Knows no settings and no SQLAlchemy.
"""

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready

_MARGIN_SECONDS = 2.0  # after the statement timeout, for the server's own error to arrive

T = TypeVar("T")


@dataclass(frozen=True)
class Timeouts:
    """In seconds. `lock` applies to each lock; `idle` is the time between two statements of one transaction."""

    statement: float = 15.0
    lock: float | None = 10.0
    idle: float = 60.0

    @property
    def options(self) -> str:
        """As libpq's `options` for a new connection."""
        said = {"statement_timeout": self.statement, "idle_in_transaction_session_timeout": self.idle}
        if self.lock is not None:
            said["lock_timeout"] = self.lock
        return " ".join(f"-c {name}={seconds * 1000:.0f}" for name, seconds in said.items())

    @property
    def answer(self) -> float:
        """Seconds without an answer after which the server counts as gone."""
        return self.statement + _MARGIN_SECONDS


class ServerSilent(psycopg.OperationalError):
    """The server has not answered within the statement timeout and a margin. It may still execute the statement."""


def _until(answer: PQGen[T], seconds: float, pgconn: Any) -> PQGen[T]:
    """Wrap psycopg's wait with a deadline of `seconds`. Raises ServerSilent then, and closes the connection."""
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
