"""Schema version: migrates the database to the newest revision with row-level security, and refuses to serve on an older one.

`metadata` holds all domain packages' tables; migrations/ holds the Alembic revisions.
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
import service.batches.models
import service.completions.models
import service.files.models
import service.fleet.models
import service.graders.models
import service.hub_pushes.models
import service.idempotency.idempotency_store
import service.merges.models
import service.metrics.models
import service.mirrors.models
import service.scheduler.models
import service.tasks.models
import service.tenants.models
import service.usage.models
import service.webhooks.models  # noqa: F401  (these declare the tables)
from service.database.engine import Base, Database
from service.database.timeouts import Timeouts
from service.schema import roles, row_level_security
from service.settings import Settings, SettingsError, say

log = logging.getLogger(__name__)

metadata = Base.metadata
# a short lock timeout: while a statement waits for a table's lock, all later ones queue behind it
MIGRATION = Timeouts(statement=3600.0, lock=3.0, idle=900.0)
_TRIES = 20
_LOCK = 0x67756172  # "guar"; an advisory lock of this database


class SchemaBusy(SettingsError):
    """A migration gave up waiting for other transactions' locks. Nothing is lost: run it again later."""


class SchemaBehind(RuntimeError):
    """The database lacks migrations that this code needs. The message says what to run."""


def config(database_url: str, timeouts: Timeouts = MIGRATION) -> Config:
    """Alembic's configuration, without an ini file."""
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes.update(database_url=database_url, timeouts=timeouts)
    return made


def upgrade(owner_url: str, timeouts: Timeouts = MIGRATION) -> None:
    """Migrate to the newest revision and set row-level security, while the service runs. Locks serialize concurrent upgrades;
    the second has nothing to do. A database at an unknown, newer revision stays unchanged. Raises SchemaBusy."""
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
    """Retry `work` while another transaction holds a lock it needs; between tries, queries queued behind it can run."""
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
    """The command `migrate`: upgrades the schema, then lets both service roles log in. Raises SettingsError."""
    if settings.owner_database_url is None:
        raise SettingsError("MOTET_OWNER_DATABASE_URL is not set: migrations run as the database's owner")
    upgrade(settings.owner_database_url, settings.migration_timeouts)
    roles.allow_login(settings.owner_database_url, roles.SYSTEM, settings.database_url)
    roles.allow_login(settings.owner_database_url, roles.APP, settings.app_database_url)
    say(f"the database is at revision {head()}")


def _known() -> set[str]:
    """All revisions of this code."""
    return {script.revision for script in ScriptDirectory.from_config(config("")).walk_revisions()}


def head() -> str:
    """The newest revision this code knows."""
    newest = ScriptDirectory.from_config(config("")).get_current_head()
    assert newest is not None  # there is always a first migration
    return newest


def check_revision(engine: Engine) -> None:
    """Raise SchemaBehind unless the database is at this code's newest revision, or at an unknown one, which counts as newer."""
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
    """Raise SchemaBehind or RoleUnfit unless the schema is current, tenants' tables are protected and roles are restricted."""
    db = Database(settings.database_url, pool_size=1, timeouts=settings.request_timeouts)
    try:
        check_revision(db.engine)
        with db.engine.connect() as connection:
            open_ones = row_level_security.unprotected(connection, metadata)
    finally:
        db.engine.dispose()
    if open_ones:
        raise SchemaBehind(f"row-level security does not guard {', '.join(open_ones)}; run: python -m service migrate")
    roles.check_role(settings.database_url, roles.SYSTEM)
    roles.check_role(settings.app_database_url, roles.APP)
