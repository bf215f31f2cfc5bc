"""The commands `backups` and `verify-backup`: which backups lie at MOTET_BACKUP_URL, and whether one is whole.

They change nothing. Verifying reads every object of the backup, its dump and its listing, and compares sizes and sha256. It
needs no database.
"""

import hashlib
import logging
from pathlib import Path

from contract.wording.field_mistakes import url_without_secrets
from service.backup.backup_creation import listed_objects
from service.backup.catalogue import VARIABLE, Manifest, catalogue_at
from service.database.engine import Database
from service.settings import Settings, SettingsError, say
from service.storage.connect import storage_at
from service.storage.object_store import BLOCK, ObjectMissing, Storage

log = logging.getLogger(__name__)


def list_backups(settings: Settings) -> None:
    """The command `backups`."""
    found = manifests(settings)
    for made in found:
        rows = sum(made.rows.values())
        say(f"{made.name}: {rows} rows, {made.objects} objects of {made.object_bytes} bytes, motet {made.motet}")
    if not found:
        say(f"no backup in {url_without_secrets(settings.backup_url or '')}")


def run(settings: Settings) -> None:
    """The command `verify-backup`. Raises SettingsError as `verified` does."""
    made = verified(settings)
    say(f"backup {made.name} is whole: its dump and {made.objects} objects of {made.object_bytes} bytes were read and compared")


def manifests(settings: Settings) -> list[Manifest]:
    """All whole backups, the oldest first."""
    catalogue = catalogue_at(_url(settings), settings)
    return [catalogue.read(name) for name in catalogue.names()]


def verified(settings: Settings) -> Manifest:
    """The backup that the settings name, or the newest, once all of it was read. Raises SettingsError where it is not whole."""
    url = _url(settings)
    made = catalogue_at(url, settings).read(settings.backup_name)
    db = Database(settings.database_url, pool_size=1, timeouts=settings.work_timeouts)  # it is never connected
    storage = storage_at(url, settings, db, VARIABLE)
    wrong = [] if _sound(storage, made.dump.sha256, made.dump.bytes) else ["its dump"]
    if not _sound(storage, made.listing.sha256, made.listing.bytes):
        raise SettingsError(f"backup {made.name} is not whole: its listing of objects is missing or damaged")
    objects = size = 0
    for sha256, bytes in listed_objects(storage, made):
        objects, size = objects + 1, size + bytes
        if not _sound(storage, sha256, bytes):
            log.error("backup %s: object %s is missing or damaged", made.name, sha256)
            wrong.append(sha256)
    if wrong:
        raise SettingsError(f"backup {made.name} is not whole: missing or damaged are {', '.join(wrong[:10])}")
    if (objects, size) != (made.objects, made.object_bytes):
        raise SettingsError(f"backup {made.name} is not whole: {objects} objects are listed, {made.objects} were copied")
    return made


def _url(settings: Settings) -> str:
    if settings.backup_url is None:
        raise SettingsError("MOTET_BACKUP_URL is not set: where backups lie, such as s3://bucket/prefix or file:///folder")
    if settings.backup_url.startswith("file://") and not Path(settings.backup_url.removeprefix("file://")).is_dir():
        raise SettingsError(f"{VARIABLE}: {url_without_secrets(settings.backup_url)} is no folder")
    return settings.backup_url


def _sound(storage: Storage, sha256: str, size: int) -> bool:
    digest, read = hashlib.sha256(), 0
    try:
        with storage.open(sha256) as content:
            while block := content.read(BLOCK):
                digest.update(block)
                read += len(block)
    except ObjectMissing:
        return False
    return (digest.hexdigest(), read) == (sha256, size)
