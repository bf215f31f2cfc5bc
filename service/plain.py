"""Statements that are worked out once and handed to the driver as they are, for requests that come in storms: SQLAlchemy takes
several times as long to find out anew what each means. Knows no tables.
"""

from collections.abc import Mapping
from typing import Any, cast

import psycopg
from sqlalchemy import ClauseElement, Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError

_DIALECT = PGDialect_psycopg()
Row = tuple[Any, ...]


class Plain:
    """One such statement. Its values go and come as psycopg has them: JSON that is sent must be text."""

    def __init__(self, statement: ClauseElement) -> None:
        compiled = statement.compile(dialect=_DIALECT)
        self._sql = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Row]:
        """What it finds, in the connection's transaction. Raises what SQLAlchemy would."""
        driver = cast("psycopg.Connection[Row]", connection.connection.driver_connection)
        try:
            cursor = driver.execute(self._sql, {**self._constants, **parameters})
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            gone = driver.closed or driver.broken
            if gone:
                connection.invalidate(error)
            raise self.told(error, gone) from error

    async def ask(self, connection: psycopg.AsyncConnection[Any], parameters: Mapping[str, Any]) -> psycopg.AsyncCursor[Any]:
        """Send it through the event loop's own connection."""
        return await connection.execute(self._sql, {**self._constants, **parameters})

    def told(self, error: psycopg.Error, gone: bool) -> DBAPIError:
        """What SQLAlchemy would raise. `gone`: the connection is not to be used again."""
        made: object = DBAPIError.instance(
            self._sql, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=gone, dialect=_DIALECT
        )
        return cast(DBAPIError, made)
