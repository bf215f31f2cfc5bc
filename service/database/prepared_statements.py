"""Prepared statements for hot paths: compiled by SQLAlchemy once, then executed by the driver directly. Knows no tables.

SQLAlchemy takes several times as long to build a statement as Postgres takes to run it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import psycopg
from sqlalchemy import ClauseElement, Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

_DIALECT = PGDialect_psycopg()
Row = tuple[Any, ...]


class PreparedStatement:
    """One statement. Parameters and results are psycopg's types, without SQLAlchemy's conversions: JSON is passed as text."""

    def __init__(self, statement: ClauseElement) -> None:
        compiled = cast(SQLCompiler, statement.compile(dialect=_DIALECT))
        if compiled.post_compile_params:
            raise ValueError(f"in_() is expanded at each execution; use == any_(...) in: {compiled}")
        self.sql = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Row]:
        """Run it in the connection's transaction; returns its rows. Raises what SQLAlchemy would."""
        driver = cast("psycopg.Connection[Row]", connection.connection.driver_connection)
        try:
            cursor = driver.execute(self.sql, {**self._constants, **parameters})
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            gone = driver.closed or driver.broken
            if gone:
                connection.invalidate(error)
            raise as_sqlalchemy(error, [self], gone) from error

    async def ask(self, connection: psycopg.AsyncConnection[Any], parameters: Mapping[str, Any]) -> psycopg.AsyncCursor[Any]:
        """Run it on the event loop's connection."""
        return await connection.execute(self.sql, {**self._constants, **parameters})


def as_sqlalchemy(error: psycopg.Error, statements: Sequence[PreparedStatement], gone: bool) -> DBAPIError:
    """The driver's error as SQLAlchemy would raise it. `gone`: the connection must not be reused."""
    said = "; ".join(statement.sql for statement in statements)
    made: object = DBAPIError.instance(
        said, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=gone, dialect=_DIALECT
    )
    return cast(DBAPIError, made)
