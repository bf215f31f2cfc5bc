"""Objects by the sha256 of their bytes: written, synced, verified, then moved into place at once. Knows no tenants and no HTTP.

`Storage` is what rooms may ask for; `LocalStorage` keeps objects on a file system that all service processes share.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from contract.wire import UploadGrant
from service.storage.upload_grants import UploadGrants

BLOCK = 2**20  # bytes moved at a time
_ABANDONED_SECONDS = 24 * 3600  # a half-written object of a process that died


class ObjectMissing(Exception):
    """Storage holds no object of this sha256."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"storage holds no object {sha256}")
        self.sha256 = sha256


class ObjectMismatch(Exception):
    """The bytes are not those that were announced."""

    def __init__(self, sha256: str, size: int, expected_sha256: str, expected_size: int | None) -> None:
        wanted = (
            f"{expected_size} bytes, sha256 {expected_sha256}" if expected_size is not None else f"sha256 {expected_sha256}"
        )
        super().__init__(f"got {size} bytes, sha256 {sha256}; announced were {wanted}")


@dataclass(frozen=True)
class Stored:
    """An object in storage. `age` is seconds since it was last put or granted."""

    sha256: str
    bytes: int
    age: float


class Incoming(Protocol):
    """An object being written. Leave it uncommitted and nothing of it stays."""

    def write(self, block: bytes) -> None: ...

    def commit(self, sha256: str | None = None, size: int | None = None) -> Stored:
        """Make it an object. Raises ObjectMismatch, and keeps nothing, if it is not what was announced."""
        ...

    def abandon(self) -> None: ...


class Storage(Protocol):
    """What the service asks of storage. Keys are sha256 in lower-case hex; objects never change."""

    def receive(self) -> Incoming:
        """Begin an object whose sha256 need not be known yet."""
        ...

    def put(self, source: BinaryIO, sha256: str, size: int) -> Stored:
        """Store the rest of `source` under its announced sha256 and size; raises ObjectMismatch."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """The object's bytes; raises ObjectMissing."""
        ...

    def size(self, sha256: str) -> int:
        """Bytes of the object; raises ObjectMissing."""
        ...

    def exists(self, sha256: str) -> bool: ...

    def keys(self) -> Iterator[Stored]:
        """Every object, in no order."""
        ...

    def delete(self, sha256: str, older_than: float = 0.0) -> bool:
        """Remove the object unless it was put or granted within `older_than` seconds; whether one was removed."""
        ...

    def sweep_incoming(self) -> int:
        """Remove what processes that died left half-written; how many."""
        ...

    def grant_upload(self, sha256: str, size: int) -> UploadGrant:
        """Where to PUT this object; an object that is already there is kept from the collector for a while."""
        ...


class LocalStorage:
    """A directory: objects/ab/<sha256> and incoming/ for what is not yet whole. One file lock orders moves and removals."""

    def __init__(self, directory: Path, grants: UploadGrants) -> None:
        self._objects, self._incoming = directory / "objects", directory / "incoming"
        self._lock_path = directory / "lock"
        self._grants = grants
        for folder in (directory, self._objects, self._incoming):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ValueError(f"not a sha256: {sha256!r}")
        return self._objects / sha256[:2] / sha256

    def receive(self) -> "LocalIncoming":
        return LocalIncoming(self, self._incoming)

    def put(self, source: BinaryIO, sha256: str, size: int) -> Stored:
        incoming = self.receive()
        try:
            shutil.copyfileobj(source, incoming, BLOCK)
            return incoming.commit(sha256, size)
        finally:
            incoming.abandon()

    def open(self, sha256: str) -> BinaryIO:
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError:
            raise ObjectMissing(sha256) from None

    def size(self, sha256: str) -> int:
        try:
            return self.path(sha256).stat().st_size
        except FileNotFoundError:
            raise ObjectMissing(sha256) from None

    def exists(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def keys(self) -> Iterator[Stored]:
        for path in self._objects.glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # removed since it was listed
            yield Stored(path.name, status.st_size, time.time() - status.st_mtime)

    def delete(self, sha256: str, older_than: float = 0.0) -> bool:
        path = self.path(sha256)
        with self._locked():
            try:
                if time.time() - path.stat().st_mtime < older_than:
                    return False
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def sweep_incoming(self) -> int:
        """Remove what processes that died left half-written; how many files."""
        removed = 0
        for path in self._incoming.iterdir():
            try:
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # its writer was alive after all
        return removed

    def grant_upload(self, sha256: str, size: int) -> UploadGrant:
        path = self.path(sha256)
        with self._locked():
            if path.is_file() and path.stat().st_size == size:
                os.utime(path)
                return UploadGrant(exists=True)
        return UploadGrant(exists=False, url=f"/internal/v1/objects/{self._grants.sign(sha256, size)}")

    def move_in(self, written: Path, sha256: str) -> None:
        """Give a whole and synced file its name. One of the same name is replaced: that mends a damaged object."""
        target = self.path(sha256)
        if not target.parent.is_dir():
            target.parent.mkdir(exist_ok=True, mode=0o700)
            _sync(self._objects)
        with self._locked():
            os.utime(written)
            written.replace(target)
        _sync(target.parent)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class LocalIncoming:
    """A file in incoming/ whose sha256 is taken while it is written."""

    def __init__(self, storage: LocalStorage, folder: Path) -> None:
        descriptor, name = tempfile.mkstemp(dir=folder)
        self._storage, self._path, self._file = storage, Path(name), os.fdopen(descriptor, "wb")
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, block: bytes) -> None:
        self._digest.update(block)
        self._size += len(block)
        self._file.write(block)

    def commit(self, sha256: str | None = None, size: int | None = None) -> Stored:
        actual = self._digest.hexdigest()
        if (sha256 is not None and sha256 != actual) or (size is not None and size != self._size):
            self.abandon()
            raise ObjectMismatch(actual, self._size, sha256 or actual, size)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._storage.move_in(self._path, actual)
        return Stored(actual, self._size, 0.0)

    def abandon(self) -> None:
        """Remove what was written; after a commit, or a second time, this does nothing."""
        try:
            with contextlib.suppress(OSError):  # of a full disk, on which what is still buffered finds no room either
                self._file.close()
        finally:
            self._path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
