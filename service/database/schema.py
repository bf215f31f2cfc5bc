"""The database's schema: bringing it to the newest revision, guarded, and refusing to serve on one that is behind.

`metadata` holds every room's tables; migrations/ holds how they came to be.
"""

import logging
from dataclasses import replace
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, NullPool, create_engine, text

import migrations
import service.adapters.models
import service.audit.models
import service.files.models
import service.fleet.models
import service.http.idempotency_store
import service.scheduler.models
import service.tasks.models
import service.tenants.models
import service.usage.models
import service.webhooks.models  # noqa: F401  (these ten declare the tables)
from service.database import roles, row_level_security
from service.database.engine import Base, Database
from service.settings import Settings, SettingsError, say
from service.timeouts import Timeouts

log = logging.getLogger(__name__)

metadata = Base.metadata
_LOCK = 0x67756172  # "guar"; an advisory lock of this database


class SchemaBehind(RuntimeError):
    """The database misses migrations that this code needs. The message says what to run."""


MIGRATION = Timeouts(statement=3600.0, lock=10.0, idle=900.0)


def config(database_url: str, timeouts: Timeouts = MIGRATION) -> Config:
    """Alembic's configuration, without an ini file."""
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes.update(database_url=database_url, timeouts=timeouts)
    return made


def upgrade(owner_url: str, timeouts: Timeouts = MIGRATION) -> None:
    """Bring the database to the newest revision, each table guarded. Two that start at once take turns, and the second finds
    nothing to do."""
    unhurried = replace(timeouts, lock=None).options  # whoever migrates at the same time is waited for
    engine = create_engine(owner_url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": unhurried})
    with engine.begin() as connection:
        roles.ensure(connection)
    command.upgrade(config(owner_url, timeouts), "head")
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        limit_locks(connection, timeouts)
        row_level_security.protect(connection, metadata)


def limit_locks(connection: Connection, timeouts: Timeouts) -> None:
    """Let no statement of this transaction wait longer for a lock: all who come later would wait behind it."""
    milliseconds = f"{(timeouts.lock or 0) * 1000:.0f}"
    connection.execute(text("SELECT set_config('lock_timeout', :value, true)"), {"value": milliseconds})


def migrate(settings: Settings) -> None:
    """The command of that name. The roles that serve can log in afterwards."""
    if settings.owner_database_url is None:
        raise SettingsError("MOTET_OWNER_DATABASE_URL is not set: migrations run as the database's owner")
    upgrade(settings.owner_database_url, settings.migration_timeouts)
    roles.admit(settings.owner_database_url, roles.SYSTEM, settings.database_url)
    roles.admit(settings.owner_database_url, roles.APP, settings.app_database_url)
    say(f"the database is at revision {head()}")


def head() -> str:
    """The newest revision this code knows."""
    newest = ScriptDirectory.from_config(config("")).get_current_head()
    assert newest is not None  # there is always a first migration
    return newest


def check(engine: Engine) -> None:
    """Raise SchemaBehind unless the database is at this code's newest revision, or at a newer one that it does not know."""
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    scripts = ScriptDirectory.from_config(config(""))
    if current == scripts.get_current_head():
        return
    if current is None:
        raise SchemaBehind("the database has no Motet tables yet; run: python -m service migrate")
    if current in {script.revision for script in scripts.walk_revisions()}:
        raise SchemaBehind(f"the database is at revision {current}, this code needs {head()}; run: python -m service migrate")
    log.warning("the database is at revision %s, which is newer than this code's %s; serving all the same", current, head())


def require(settings: Settings) -> None:
    """Raise unless a process may begin its work: `check`, every table guarded, and roles that cannot do too much."""
    db = Database(settings.database_url, pool_size=1, timeouts=settings.request_timeouts)
    try:
        check(db.engine)
        with db.engine.connect() as connection:
            open_ones = row_level_security.unprotected(connection, metadata)
    finally:
        db.engine.dispose()
    if open_ones:
        raise SchemaBehind(f"row-level security does not guard {', '.join(open_ones)}; run: python -m service migrate")
    roles.check(settings.database_url, roles.SYSTEM)
    roles.check(settings.app_database_url, roles.APP)
