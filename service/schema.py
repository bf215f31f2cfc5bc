"""The database's schema: bringing it to the newest revision, and refusing to serve on one that is behind.

`metadata` holds every room's tables; migrations/ holds how they came to be.
"""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

import migrations
import service.adapters.models
import service.files.models
import service.fleet.models
import service.scheduler.models
import service.tasks.models
import service.tenants.models  # noqa: F401  (these six declare the tables)
from service.db import Base, Database
from service.settings import Settings, say

log = logging.getLogger(__name__)

metadata = Base.metadata


class SchemaBehind(RuntimeError):
    """The database misses migrations that this code needs. The message says what to run."""


def config(database_url: str) -> Config:
    """Alembic's configuration, without an ini file."""
    made = Config()
    made.set_main_option("script_location", str(Path(migrations.__file__).parent))
    made.attributes["database_url"] = database_url
    return made


def upgrade(database_url: str) -> None:
    """Bring the database to the newest revision. Two that start at once take turns, and the second finds nothing to do."""
    command.upgrade(config(database_url), "head")


def migrate(settings: Settings) -> None:
    """The command of that name."""
    upgrade(settings.database_url)
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
    """`check` for a process that is about to begin its work."""
    db = Database(settings.database_url, pool_size=1)
    try:
        check(db.engine)
    finally:
        db.engine.dispose()
