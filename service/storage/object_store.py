"""Content-addressed object store: verifies and syncs an object, then renames it into place. Knows no tenants and no HTTP.

`Storage` is the interface; `LocalStorage` keeps objects on a file system that all service processes share.
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

from contract.messages.upload_messages import UploadGrant
from service.storage.upload_grants import UploadGrants

BLOCK = 2**20  # bytes copied at a time
_ABANDONED_SECONDS = 24 * 3600  # age at which a partly written object counts as left by a dead process


class ObjectMissing(Exception):
    """Storage holds no object of this sha256."""

    def __init__(self, sha256: str) -> None:
        super().__init__(f"storage holds no object {sha256}")
        self.sha256 = sha256


class ObjectMismatch(Exception):
    """The bytes do not match the announced sha256 or size."""

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
    """An object being written. `abandon` removes it unless it was committed."""

    def write(self, block: bytes) -> None: ...

    def commit(self, sha256: str | None = None, size: int | None = None) -> Stored:
        """Store the object. Raises ObjectMismatch and removes it if it differs from the announced sha256 or size."""
        ...

    def abandon(self) -> None: ...


class Storage(Protocol):
    """The storage interface. Keys are sha256 in lower-case hex; objects never change."""

    def receive(self) -> Incoming:
        """Begin writing an object whose sha256 may be unknown yet."""
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
        """Remove the object unless it was put or granted within `older_than` seconds; returns whether it was removed."""
        ...

    def sweep_incoming(self) -> int:
        """Remove partly written objects of dead processes; returns how many."""
        ...

    def grant_upload(self, sha256: str, size: int) -> UploadGrant:
        """Where to PUT this object. If it exists already, this resets its age, so that garbage collection spares it."""
        ...


class LocalStorage:
    """A directory: objects/ab/<sha256>, and incoming/ for partial objects. A file lock serializes renames and removals."""

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
                continue  # removed since the listing
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
        """Remove partly written files of dead processes; returns how many."""
        removed = 0
        for path in self._incoming.iterdir():
            try:
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # its writer is alive and has just moved or removed it
        return removed

    def grant_upload(self, sha256: str, size: int) -> UploadGrant:
        path = self.path(sha256)
        with self._locked():
            if path.is_file() and path.stat().st_size == size:
                os.utime(path)
                return UploadGrant(exists=True)
        return UploadGrant(exists=False, url=f"/internal/v1/objects/{self._grants.sign(sha256, size)}")

    def move_in(self, written: Path, sha256: str) -> None:
        """Rename a complete, synced file to its object's name. Replaces an existing object, which repairs a damaged one."""
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
    """A file in incoming/ that is hashed while it is written."""

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
        """Remove the file; does nothing after a commit or when called again."""
        try:
            with contextlib.suppress(OSError):  # a full disk: closing fails to flush the buffer
                self._file.close()
        finally:
            self._path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
