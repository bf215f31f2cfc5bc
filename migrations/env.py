"""How alembic reaches the database: over one connection, in one transaction, behind a lock that only one migration holds."""

import os
from dataclasses import replace

from alembic import context
from sqlalchemy import NullPool, create_engine, text

from service.database.schema import MIGRATION, limit_locks, metadata

_LOCK = 0x6D6F746574  # "motet"; an advisory lock of this database


def run() -> None:
    url = context.config.attributes.get("database_url") or os.environ["MOTET_DATABASE_URL"]
    timeouts = context.config.attributes.get("timeouts", MIGRATION)
    unhurried = replace(timeouts, lock=None).options
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": unhurried})
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True)
        with context.begin_transaction():
            # before alembic reads the revision: whoever waits here finds the other's work already done
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            limit_locks(connection, timeouts)
            context.run_migrations()


run()
