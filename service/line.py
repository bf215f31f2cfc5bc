"""A connection of the event loop's own, for what is asked without end: whoever polls waits for no thread, however many compute.
Knows no tables.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import psycopg

from service.db import CONNECT, NAME_TENANT, driver_url
from service.plain import Plain, Row

_AWAY_SECONDS = 1.0  # for so long after a connection could not be made nobody tries: all would wait for it in turn


class Line:
    """Opened when it is needed, and anew after it has broken. Whoever asks holds `turn`."""

    def __init__(self, url: str) -> None:
        self._url = driver_url(url)
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self._broke = False  # the last one that failed, by itself
        self._away: tuple[float, str] = (-math.inf, "")  # when no connection could be made, and why
        self.turn = asyncio.Semaphore(1)

    async def look(self, tenant_id: str, statement: Plain, parameters: Mapping[str, Any]) -> list[Row]:
        """What one statement finds of the tenant's rows, in a transaction of its own. Raises what SQLAlchemy would."""
        reused = self._connection is not None
        try:
            try:
                return await self._look(tenant_id, statement, parameters)
            except psycopg.OperationalError:
                if not (reused and self._broke):
                    raise
            return await self._look(tenant_id, statement, parameters)  # the server had closed it while nobody asked
        except psycopg.Error as error:
            raise statement.told(error, gone=True) from error

    async def _look(self, tenant_id: str, statement: Plain, parameters: Mapping[str, Any]) -> list[Row]:
        connection = self._connection or await self._connect()
        try:
            async with connection.pipeline():  # one way to the server and back
                await connection.execute("BEGIN")
                await NAME_TENANT.ask(connection, {"tenant": tenant_id})
                found = await statement.ask(connection, parameters)
                await connection.execute("COMMIT")
            rows = await found.fetchall()
        except BaseException:  # whatever it was, nobody knows what the connection is in the middle of
            self._broke = connection.broken
            await self.close()
            raise
        return rows

    async def _connect(self) -> psycopg.AsyncConnection[Row]:
        loop, (when, why) = asyncio.get_running_loop(), self._away
        if loop.time() < when + _AWAY_SECONDS:
            raise psycopg.OperationalError(why)
        try:
            self._connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, **CONNECT)
        except psycopg.OperationalError as error:
            self._away = loop.time(), str(error)
            raise
        return self._connection

    async def close(self) -> None:
        """Hang up; whoever asks later opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
