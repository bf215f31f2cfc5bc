"""Alembic environment: runs each migration in its own transaction, and none waits long for a lock.

With one transaction per migration, a migration can leave it to build an index concurrently (`autocommit_block`) and holds no
locks while others run. A statement that waits for a lock blocks every statement queued behind it, so it gives up after
a few seconds, and `service.schema.schema_upgrade` tries again.
"""

import os
import time
from dataclasses import replace

from alembic import context
from sqlalchemy import NullPool, create_engine, text

from service.schema.schema_upgrade import MIGRATION, metadata

_LOCK = 0x6D6F746574  # "motet"; the key of an advisory lock of this database
_POLL_SECONDS = 0.2


def run() -> None:
    url = context.config.attributes.get("database_url") or os.environ["MOTET_DATABASE_URL"]
    timeouts = context.config.attributes.get("timeouts", MIGRATION)
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": timeouts.options})
    patient = replace(timeouts, idle=0.0).options  # the guard connection sits idle with its lock while migrations run
    guards = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": patient})
    with guards.connect().execution_options(isolation_level="AUTOCOMMIT") as guard, engine.connect() as connection:
        # Polled rather than blocking: a concurrent index build waits for every older snapshot, including a waiting query's. The
        # lock is taken before alembic reads the revision, so that a second process finds the first one's migrations already
        # applied.
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
