"""The manifests of backups, by name, beside the backups' objects: in a folder, or in a bucket. Knows no database."""

import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ValidationError

from service.settings import Settings, SettingsError

VARIABLE = "MOTET_BACKUP_URL"  # of the environment
_FOLDER, _MOST_BYTES = "backups", 2**20
_BUCKET = "service.storage.bucket:Bucket"  # loads obstore


class StoredPart(BaseModel):
    """An object of the backup's storage."""

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """One backup. It is written last, so a backup that has one is whole."""

    format: int = 1
    name: str  # when it was taken, in UTC, as 20261123T094500123Z
    motet: str  # version
    revision: str  # of the database's schema
    dump: StoredPart  # pg_dump's custom format
    listing: StoredPart  # every object of the storage: a line of sha256 and bytes each
    objects: int
    object_bytes: int
    rows: dict[str, int]  # by table, in the dump's own snapshot
    secret_key: str  # a fingerprint of MOTET_SECRET_KEY, which a backup does not hold


class Shelf(Protocol):
    """Small named texts."""

    def names(self) -> Iterator[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


class Catalogue:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def names(self) -> list[str]:
        """All whole backups, the oldest first."""
        return sorted(name.removesuffix(".json") for name in self._shelf.names() if name.endswith(".json"))

    def read(self, name: str | None) -> Manifest:
        """A backup's manifest; without a name the newest. Raises SettingsError."""
        names = self.names()
        if not names:
            raise SettingsError("MOTET_BACKUP_URL holds no backup")
        if name is not None and name not in names:
            raise SettingsError(f"there is no backup {name}; there are {', '.join(names[-10:])}")
        chosen = name or names[-1]
        try:
            made = Manifest.model_validate_json(self._shelf.read(f"{chosen}.json"))
        except ValidationError as error:
            raise SettingsError(f"the manifest of backup {chosen} cannot be read: {error.errors()[0]['msg']}") from None
        if made.format != 1:
            raise SettingsError(
                f"backup {chosen} has format {made.format}: restore it with the version that made it, {made.motet}"
            )
        return made

    def write(self, manifest: Manifest) -> None:
        self._shelf.write(f"{manifest.name}.json", json.dumps(manifest.model_dump(), indent=1).encode())

    def remove(self, name: str) -> None:
        self._shelf.remove(f"{name}.json")


def catalogue_at(url: str, settings: Settings) -> Catalogue:
    if url.startswith("file://"):
        return catalogue_in(Path(url.removeprefix("file://")))
    return Catalogue(_InBucket(url, settings))


def catalogue_in(folder: Path) -> Catalogue:
    """Of backups in a folder, which takes no settings."""
    return Catalogue(_Folder(folder / _FOLDER))


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def names(self) -> Iterator[str]:
        yield from (path.name for path in self._folder.iterdir())

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        draft = self._folder / f"{name}.new"
        draft.write_bytes(content)
        draft.replace(self._folder / name)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class _InBucket:
    def __init__(self, url: str, settings: Settings) -> None:
        self._bucket = pkgutil.resolve_name(_BUCKET).of(url, settings, VARIABLE)

    def names(self) -> Iterator[str]:
        for page in self._bucket.pages(f"{_FOLDER}/"):
            yield from (entry.key.rpartition("/")[2] for entry in page)

    def read(self, name: str) -> bytes:
        content: bytes = self._bucket.open(f"{_FOLDER}/{name}").read(_MOST_BYTES)
        return content

    def write(self, name: str, content: bytes) -> None:
        self._bucket.put(f"{_FOLDER}/{name}", content)

    def remove(self, name: str) -> None:
        self._bucket.delete(f"{_FOLDER}/{name}")
