"""The command `restore`: makes a database and a storage from a backup, and checks that nothing is missing.

The database must be empty, and is filled in one transaction. Each object is verified by its sha256 as it is copied; then each
table's rows are compared with those that were counted in the dump's snapshot, and every row's object is looked for.
"""

import logging
import shutil

import psycopg
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from service.background.garbage_collection import references
from service.backup.backup_creation import count_rows, fingerprint, listed_objects, required
from service.backup.catalogue import VARIABLE, Manifest, catalogue_at
from service.backup.postgres_programs import restoring
from service.database.engine import Database, driver_url
from service.schema import roles
from service.settings import Settings, SettingsError, say
from service.storage.connect import storage_at, storage_of
from service.storage.object_store import BLOCK, ObjectMismatch, ObjectMissing, Storage

log = logging.getLogger(__name__)

_TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"


def run(settings: Settings) -> None:
    """The command. Raises SettingsError as `bring_back` does."""
    manifest = bring_back(settings)
    say(
        f"restored backup {manifest.name}: {sum(manifest.rows.values())} rows, {manifest.objects} objects, all as counted there"
    )
    if manifest.secret_key != fingerprint(settings):
        say("MOTET_SECRET_KEY is another than that of the backup: put the old one into MOTET_SECRET_KEYS_BEFORE")
    say("next: python -m service migrate, then start the other programs")


def bring_back(settings: Settings) -> Manifest:
    """Make database and storage from the backup that the settings name. Raises SettingsError where the database is not empty or
    the backup is damaged."""
    owner, url = required(settings)
    db = Database(settings.database_url, pool_size=2, timeouts=settings.work_timeouts)
    source, target = storage_at(url, settings, db, VARIABLE), storage_of(settings, db)
    manifest = catalogue_at(url, settings).read(settings.backup_name)
    restore(owner, manifest, source, target, settings)
    db.engine.dispose()
    return manifest


def restore(owner: str, manifest: Manifest, source: Storage, target: Storage, settings: Settings) -> None:
    with psycopg.connect(driver_url(owner), connect_timeout=10) as connection:
        ((tables,),) = connection.execute(_TABLES).fetchall()
    if tables:
        raise SettingsError(f"the database has {tables} tables: restore into an empty one (CREATE DATABASE)")
    target.check()
    _objects(manifest, source, target)
    engine = create_engine(owner, poolclass=NullPool)
    with engine.begin() as connection:
        roles.ensure(connection)  # the dump grants rights to roles but does not create them
    with source.open(manifest.dump.sha256) as dump, restoring(owner, settings.pg_programs) as into:
        shutil.copyfileobj(dump, into, BLOCK)
    with psycopg.connect(driver_url(owner), connect_timeout=10) as connection:
        found = count_rows(connection)
        connection.execute("ANALYZE")  # a dump holds no statistics: queries of large tables would be planned without any
    differing = [table for table in manifest.rows.keys() | found.keys() if manifest.rows.get(table) != found.get(table)]
    if differing:
        raise SettingsError(f"the restored database differs from the backup's count in {', '.join(sorted(differing))}")
    with Session(engine) as session:
        missing = [sha256 for sha256 in references(session) if not target.exists(sha256)]
    if missing:
        raise SettingsError(f"rows refer to {len(missing)} objects that the backup does not hold: {', '.join(missing[:10])}")


def _objects(manifest: Manifest, source: Storage, target: Storage) -> None:
    """Copy the backup's objects. One that is there already is left, so another run goes on where one was cut."""
    wrong = []
    for sha256, size in listed_objects(source, manifest):
        try:
            if target.size(sha256) == size:
                continue
        except ObjectMissing:
            pass
        try:
            with source.open(sha256) as content:
                target.put(content, sha256, size)
        except (ObjectMissing, ObjectMismatch) as error:
            log.error("backup %s: %s", manifest.name, error)
            wrong.append(sha256)
    if wrong:
        raise SettingsError(f"{len(wrong)} objects of backup {manifest.name} are missing or damaged: {', '.join(wrong[:10])}")
