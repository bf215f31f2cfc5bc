"""The command `move-storage`: copies every object from the storage in the settings to MOTET_STORAGE_MOVE_TO.

Each object is verified by its sha256 on the way. One that is there already is left, so another run resumes an interrupted one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from contract.wording.field_mistakes import url_without_secrets
from service.database.engine import Database
from service.settings import Settings, SettingsError, say
from service.storage.connect import storage_at, storage_of
from service.storage.object_store import ObjectMismatch, ObjectMissing, Storage

log = logging.getLogger(__name__)

_TOLD = 1000  # objects between two lines of progress


@dataclass
class Moved:
    """What a run did. `damaged`: objects whose bytes are not those of their name; they were not copied."""

    copied: int = 0
    bytes: int = 0
    there: int = 0
    damaged: list[str] = field(default_factory=list)


def run(settings: Settings) -> None:
    """The command. Raises SettingsError where there is nowhere to move to, or objects are damaged."""
    moved = move(settings)
    there = url_without_secrets(settings.storage_move_to or "")
    say(f"copied {moved.copied} objects, {moved.bytes} bytes, to {there}; {moved.there} were there already")
    if moved.damaged:
        raise SettingsError(damage_words(moved))
    say("run it again with the service stopped, for what was stored meanwhile; then set MOTET_STORAGE_URL to the new storage")


def damage_words(moved: Moved) -> str:
    return f"{len(moved.damaged)} objects are damaged and were not copied: {', '.join(moved.damaged[:10])}"


def move(settings: Settings) -> Moved:
    """Copy all objects to the new storage. Raises SettingsError where there is nowhere to move to."""
    target = settings.storage_move_to
    if target is None:
        raise SettingsError("MOTET_STORAGE_MOVE_TO is not set: the storage to copy to, such as s3://bucket/prefix")
    if target == settings.storage_address:
        raise SettingsError(f"MOTET_STORAGE_MOVE_TO is where the objects are: {url_without_secrets(target)}")
    db = Database(settings.database_url, pool_size=2, timeouts=settings.work_timeouts)
    to = storage_at(target, settings, db, "MOTET_STORAGE_MOVE_TO")
    to.check()
    return copy_all(storage_of(settings, db), to)


def copy_all(source: Storage, target: Storage, note: Callable[[str, int], None] | None = None) -> Moved:
    """Copy what the target lacks; `note` hears sha256 and bytes of each object that it has then. Objects that are removed
    meanwhile are passed over."""
    moved, seen = Moved(), 0
    for stored in source.keys():  # noqa: SIM118  (not a mapping)
        seen += 1
        if seen % _TOLD == 0:
            log.info("%d objects looked at, %d copied", seen, moved.copied)
        try:
            if target.size(stored.sha256) == stored.bytes:
                moved.there += 1
                if note is not None:
                    note(stored.sha256, stored.bytes)
                continue
        except ObjectMissing:
            pass
        try:
            with source.open(stored.sha256) as content:
                target.put(content, stored.sha256, stored.bytes)
        except ObjectMissing:
            continue
        except ObjectMismatch as error:
            log.error("object %s is damaged: %s", stored.sha256, error)
            moved.damaged.append(stored.sha256)
            continue
        moved.copied += 1
        moved.bytes += stored.bytes
        if note is not None:
            note(stored.sha256, stored.bytes)
    return moved
