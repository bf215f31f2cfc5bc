"""How alembic reaches the database: one migration at a time, each in a transaction of its own, none waiting long for a lock.

A transaction each, so that one may leave it to build an index concurrently (`autocommit_block`), and none keeps its locks
while others run. A statement that waits for a lock keeps everybody behind it waiting too; so it gives up after LOCK_TIMEOUT,
and `service.database.schema` tries again.
"""

import os
import time
from dataclasses import replace

from alembic import context
from sqlalchemy import NullPool, create_engine, text

from service.database.schema import MIGRATION, metadata

_LOCK = 0x6D6F746574  # "motet"; an advisory lock of this database
_POLL_SECONDS = 0.2


def run() -> None:
    url = context.config.attributes.get("database_url") or os.environ["MOTET_DATABASE_URL"]
    timeouts = context.config.attributes.get("timeouts", MIGRATION)
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": timeouts.options})
    patient = replace(timeouts, idle=0.0).options  # the guard holds its lock while migrations run
    guards = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": patient})
    with guards.connect().execution_options(isolation_level="AUTOCOMMIT") as guard, engine.connect() as connection:
        # Polled, since an index that is built concurrently waits for every older snapshot, also that of a query that waits.
        # Before alembic reads the revision: the second of two finds the first one's work already done.
        while not guard.scalar(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _LOCK}):
            time.sleep(_POLL_SECONDS)
        context.configure(
            connection=connection,
            target_metadata=metadata,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
