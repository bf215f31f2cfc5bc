"""Async reads over one pipelined connection of the event loop, so that polls need no thread. Knows no tables."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row

from service.database.engine import CONNECT, NAME_TENANT, driver_url
from service.database.prepared_statements import PreparedStatement, as_sqlalchemy
from service.database.timeouts import AsyncConnection, Timeouts

Found = TypeVar("Found")
Cursor = psycopg.AsyncCursor[Any]  # over received rows, as named tuples
_AWAY_SECONDS = 1.0  # after a failed connect, reads fail at once for this long, or each would wait for its own attempt


class AsyncReader:
    """Connects on first use, and again after the connection broke. A caller must hold `turn`."""

    def __init__(self, url: str, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008  (frozen)
        self._url, self._timeouts = driver_url(url), timeouts
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._away: tuple[float, str] = (-math.inf, "")  # when the last connect failed, and why
        self.semaphore = asyncio.Semaphore(1)

    async def look(
        self, tenant_id: str, statements: Sequence[PreparedStatement], parameters: Mapping[str, Any]
    ) -> list[Cursor]:
        """Run all statements on the tenant's rows in one snapshot and one round trip. Raises what SQLAlchemy would."""
        return await self._run(statements, lambda connection: _ask(connection, tenant_id, statements, parameters))

    async def look_alone(self, statement: PreparedStatement, parameters: Mapping[str, Any]) -> Cursor:
        """Run one statement in a transaction of its own. It names no tenant: under the app role a statement that does not name
        one itself sees no tenant's rows. Raises what SQLAlchemy would."""
        return await self._run([statement], lambda connection: statement.ask(connection, parameters))

    async def _run(
        self, statements: Sequence[PreparedStatement], ask: Callable[[psycopg.AsyncConnection[Any]], Awaitable[Found]]
    ) -> Found:
        connection = reused = self._connection
        try:
            connection = connection or await self._connect()
            self._connection = None  # if cancelled here, the connection's state is unknown, so it must not be reused
            found = await ask(connection)
            self._connection = connection
            return found
        except psycopg.Error as error:
            if reused is None or not reused.broken:
                raise as_sqlalchemy(error, statements, gone=True) from error
        finally:
            if connection is not None and self._connection is None:
                await connection.close()
        return await self._run(statements, ask)  # the server had closed the idle connection

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        loop, (when, why) = asyncio.get_running_loop(), self._away
        if loop.time() < when + _AWAY_SECONDS:
            raise psycopg.OperationalError(why)
        try:
            made = await AsyncConnection.connect(
                self._url, autocommit=True, row_factory=namedtuple_row, options=self._timeouts.options, **CONNECT
            )
        except psycopg.OperationalError as error:
            self._away = loop.time(), str(error)
            raise
        made.answer_seconds = self._timeouts.answer
        return made

    async def close(self) -> None:
        """Close the connection; a later read opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _ask(
    connection: psycopg.AsyncConnection[Any],
    tenant_id: str,
    statements: Sequence[PreparedStatement],
    parameters: Mapping[str, Any],
) -> list[Cursor]:
    async with connection.pipeline():
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await NAME_TENANT.ask(connection, {"tenant": tenant_id})
        found = [await statement.ask(connection, parameters) for statement in statements]
        await connection.execute("COMMIT")
    return found
