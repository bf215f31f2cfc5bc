"""A full picture of the database, to show that something changed nothing."""

from typing import Any

from sqlalchemy import MetaData, select

from service.database.engine import Database


def dump(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in a stable order."""
    tables = MetaData()
    tables.reflect(database.engine)
    with database.begin() as session:
        return {
            name: sorted((tuple(row) for row in session.execute(select(table))), key=repr)
            for name, table in tables.tables.items()
        }
