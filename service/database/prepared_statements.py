"""SQL that is compiled once and handed to the driver as it is, for hot paths. Knows no tables.

SQLAlchemy takes several times as long to build a statement anew as Postgres takes to run it.
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
    """One such statement. Its values go and come as psycopg has them: JSON that is sent must be text."""

    def __init__(self, statement: ClauseElement) -> None:
        compiled = cast(SQLCompiler, statement.compile(dialect=_DIALECT))
        if compiled.post_compile_params:
            raise ValueError(f"in_() is worked out each time it is executed; say == any_(...) in: {compiled}")
        self.sql = str(compiled)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Row]:
        """What it finds, in the connection's transaction. Raises what SQLAlchemy would."""
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
        """Send it through the event loop's own connection."""
        return await connection.execute(self.sql, {**self._constants, **parameters})


def as_sqlalchemy(error: psycopg.Error, statements: Sequence[PreparedStatement], gone: bool) -> DBAPIError:
    """What SQLAlchemy would raise where one of these fails. `gone`: the connection is not to be used again."""
    said = "; ".join(statement.sql for statement in statements)
    made: object = DBAPIError.instance(
        said, None, error, psycopg.Error, hide_parameters=True, connection_invalidated=gone, dialect=_DIALECT
    )
    return cast(DBAPIError, made)
