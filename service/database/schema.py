"""The database's schema: bringing it to the newest revision, guarded, and refusing to serve on one that is behind.

`metadata` holds every room's tables; migrations/ holds how they came to be.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import LockNotAvailable
from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

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
from service.database.timeouts import Timeouts
from service.settings import Settings, SettingsError, say

log = logging.getLogger(__name__)

metadata = Base.metadata
# a statement that waits for a table's lock keeps all others waiting behind it
MIGRATION = Timeouts(statement=3600.0, lock=3.0, idle=900.0)
_TRIES = 20
_LOCK = 0x67756172  # "guar"; an advisory lock of this database


class SchemaBusy(SettingsError):
    """Others hold locks for so long that a migration gave up. Nothing is lost: run it again when they are done."""


class SchemaBehind(RuntimeError):
    """The database misses migrations that this code needs. The message says what to run."""


def config(database_url: str, timeouts: Timeouts = MIGRATION) -> Config:
    """Alembic's configuration, without an ini file."""
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes.update(database_url=database_url, timeouts=timeouts)
    return made


def upgrade(owner_url: str, timeouts: Timeouts = MIGRATION) -> None:
    """Bring the database to the newest revision, each table guarded, while others use it. Two that start at once take turns,
    and the second finds nothing to do. A database of a newer version stays as it is."""
    engine = create_engine(owner_url, poolclass=NullPool, connect_args={"connect_timeout": 5, "options": timeouts.options})
    with engine.begin() as connection:
        roles.ensure(connection)
        current = MigrationContext.configure(connection).get_current_revision()
    if current is not None and current not in _known():
        log.warning("the database is at revision %s, which is newer than this code's %s: nothing to migrate", current, head())
        return
    _retried(lambda: command.upgrade(config(owner_url, timeouts), "head"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as turn:
        _retried(lambda: turn.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK}))
        for step in row_level_security.steps(turn, metadata):
            _retried(partial(_together, engine, step))


def _together(engine: Engine, statements: Sequence[str]) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def _retried(work: Callable[[], object]) -> None:
    """Do it again while somebody holds a lock that it needs: meanwhile those whom it kept waiting have their turn."""
    for left in reversed(range(_TRIES)):
        try:
            work()
            return
        except OperationalError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            if not left:
                raise SchemaBusy(f"a table stayed locked through {_TRIES} tries: {error.orig}") from None
            log.warning("a table is locked; trying again, %d tries left", left)


def migrate(settings: Settings) -> None:
    """The command of that name. The roles that serve can log in afterwards."""
    if settings.owner_database_url is None:
        raise SettingsError("MOTET_OWNER_DATABASE_URL is not set: migrations run as the database's owner")
    upgrade(settings.owner_database_url, settings.migration_timeouts)
    roles.admit(settings.owner_database_url, roles.SYSTEM, settings.database_url)
    roles.admit(settings.owner_database_url, roles.APP, settings.app_database_url)
    say(f"the database is at revision {head()}")


def _known() -> set[str]:
    """All revisions of this code."""
    return {script.revision for script in ScriptDirectory.from_config(config("")).walk_revisions()}


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
    if current in _known():
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
