"""The command `backup`: copies database and objects to MOTET_BACKUP_URL while the service runs, and removes surplus backups.

Objects are copied, then the database is dumped in one snapshot, then the objects that came meanwhile are copied. A backup has
those of both copies: the collector removes an object that is older than a day with the last row that refers to it, and the dump
may have that row.
"""

import hashlib
import hmac
import io
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psycopg
from psycopg import sql

from contract.compatibility.version import VERSION
from contract.wording.field_mistakes import url_without_secrets
from service.backup.catalogue import VARIABLE, Catalogue, Manifest, StoredPart, catalogue_at
from service.backup.postgres_programs import dumping
from service.database.engine import Database, driver_url
from service.metrics.models import NewestBackup
from service.settings import Settings, SettingsError, say
from service.storage.connect import storage_at, storage_of
from service.storage.object_store import BLOCK, Storage
from service.storage.storage_move import copy_all

log = logging.getLogger(__name__)

_YOUNG_SECONDS = 24 * 3600.0  # objects of backups that are being made are never removed
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
_NOW = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISSMS\"Z\"'), pg_export_snapshot()"


def run(settings: Settings) -> None:
    """The command. Raises SettingsError as `take` does."""
    made, removed = take(settings)
    rows, there = sum(made.rows.values()), url_without_secrets(settings.backup_url or "")
    say(f"backup {made.name}: {rows} rows, {made.objects} objects of {made.object_bytes} bytes, in {there}")
    say(f"{removed} objects of older backups removed; keep MOTET_SECRET_KEY elsewhere: a backup does not hold it")


def take(settings: Settings) -> tuple[Manifest, int]:
    """Take a backup, and remove surplus ones; how many objects of these. Raises SettingsError where something is not set, or an
    object is damaged."""
    owner, url = required(settings)
    db = Database(settings.database_url, pool_size=2, timeouts=settings.work_timeouts)
    source, target = storage_of(settings, db), storage_at(url, settings, db, VARIABLE)
    if url == settings.storage_address:
        raise SettingsError(f"MOTET_BACKUP_URL is where the objects are: {url_without_secrets(url)}")
    target.check()
    catalogue = catalogue_at(url, settings)
    made = back_up(owner, source, target, catalogue, settings)
    _record(db, made)
    removed = remove_surplus(target, catalogue, settings.backups_kept)
    db.engine.dispose()
    return made, removed


def _record(db: Database, made: Manifest) -> None:
    """Have /metrics tell how old the newest backup is."""
    taken_at = datetime.strptime(made.name, "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC)
    with db.begin() as session:
        session.merge(NewestBackup(id=1, name=made.name, taken_at=taken_at))


def required(settings: Settings) -> tuple[str, str]:
    """The owner's URL and that of the backups. Raises SettingsError."""
    if settings.backup_url is None:
        raise SettingsError("MOTET_BACKUP_URL is not set: where backups lie, such as s3://bucket/prefix or file:///folder")
    if settings.owner_database_url is None:
        raise SettingsError("MOTET_OWNER_DATABASE_URL is not set: a dump needs the rows of all tenants")
    return settings.owner_database_url, settings.backup_url


def fingerprint(settings: Settings) -> str:
    """Tells secret keys apart without giving them away."""
    return hmac.digest(settings.secret_key.get_secret_value().encode(), b"motet backup", "sha256").hex()[:16]


def back_up(owner: str, source: Storage, target: Storage, catalogue: Catalogue, settings: Settings) -> Manifest:
    """One backup. Nothing of it counts until its manifest is written, last."""
    listed: dict[str, int] = {}  # bytes by sha256
    _copy(source, target, listed)
    with psycopg.connect(driver_url(owner), connect_timeout=10) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        (name, snapshot), *_ = connection.execute(_NOW).fetchall()
        rows = count_rows(connection)
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or ("",)
        with dumping(owner, snapshot, settings.pg_programs) as dump:
            dumped = _store(target, lambda: dump.read(BLOCK))
    _copy(source, target, listed)
    listing = io.BytesIO("".join(f"{sha256} {size}\n" for sha256, size in listed.items()).encode())
    made = Manifest(
        name=name,
        motet=VERSION,
        revision=revision,
        dump=dumped,
        listing=_store(target, lambda: listing.read(BLOCK)),
        objects=len(listed),
        object_bytes=sum(listed.values()),
        rows=rows,
        secret_key=fingerprint(settings),
    )
    catalogue.write(made)
    return made


def count_rows(connection: psycopg.Connection[tuple[object, ...]]) -> dict[str, int]:
    """Rows by table, in the transaction's snapshot."""
    tables = [str(name) for (name,) in connection.execute(_TABLES)]
    counted = {}
    for table in tables:
        ((count,),) = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchall()
        counted[table] = int(str(count))
    return counted


def _copy(source: Storage, target: Storage, listed: dict[str, int]) -> None:
    """Copy what the target lacks, and list what it has of the source. Raises SettingsError where an object is damaged: the
    backup would not be whole."""
    moved = copy_all(source, target, listed.__setitem__)
    if moved.damaged:
        raise SettingsError(
            f"{len(moved.damaged)} objects are damaged, so nothing was backed up: {', '.join(moved.damaged[:10])}"
        )


def _store(target: Storage, read: Callable[[], bytes]) -> StoredPart:
    incoming = target.receive()
    try:
        while block := read():
            incoming.write(block)
        stored = incoming.commit()
    finally:
        incoming.abandon()
    return StoredPart(sha256=stored.sha256, bytes=stored.bytes)


def listed_objects(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, int]]:
    """(sha256, bytes) of the objects of a backup. Raises SettingsError where the listing is damaged."""
    digest = hashlib.sha256()
    with storage.open(manifest.listing.sha256) as lines:
        for line in lines:
            digest.update(line)
            sha256, _, size = line.decode().strip().partition(" ")
            yield sha256, int(size)
    if digest.hexdigest() != manifest.listing.sha256:
        raise SettingsError(f"the listing of backup {manifest.name} is damaged")


def remove_surplus(target: Storage, catalogue: Catalogue, kept: int) -> int:
    """Remove all but the newest backups, and the objects that none of those needs; returns how many objects."""
    names = catalogue.names()
    for name in names[:-kept]:
        catalogue.remove(name)
    needed: set[str] = set()
    for name in catalogue.names():
        manifest = catalogue.read(name)
        needed |= {manifest.dump.sha256, manifest.listing.sha256}
        needed.update(sha256 for sha256, _ in listed_objects(target, manifest))
    old = [stored.sha256 for stored in target.keys() if stored.sha256 not in needed]  # noqa: SIM118  (not a mapping)
    return sum(target.delete(sha256, older_than=_YOUNG_SECONDS) for sha256 in old)
