"""Objects on a file system that all service processes share: verified and synced, then renamed into place. Knows no HTTP."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from contract.messages.upload_messages import UploadGrant
from service.storage.object_store import (
    BLOCK,
    DERIVED_LINK_SECONDS,
    DERIVED_SECONDS,
    Caller,
    ObjectMismatch,
    ObjectMissing,
    Stored,
    require_sha256,
)
from service.storage.transfer_links import Linked, TransferLinks
from service.storage.upload_grants import UploadGrants

log = logging.getLogger(__name__)

_ABANDONED_SECONDS = 24 * 3600  # age at which a partly written object counts as left by a dead process


class LocalStorage:
    """A directory: objects/ab/<sha256>, incoming/ for partial files, derived/ for archives. A file lock serializes renames and
    removals."""

    def __init__(
        self, directory: Path, grants: UploadGrants, offload: str | None = None, links: TransferLinks | None = None
    ) -> None:
        """offload: `x-accel-redirect:/prefix` or `x-sendfile`, where a proxy sends the files (settings.py). links: to the
        transfer port, where one sends and takes them."""
        self._directory, self._offload = directory, offload
        self._objects, self._incoming, self._derived = (directory / name for name in ("objects", "incoming", "derived"))
        self._lock_path = directory / "lock"
        self._grants, self._links = grants, links
        for folder in (directory, self._objects, self._incoming, self._derived):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, sha256: str) -> Path:
        return self._objects / require_sha256(sha256)[:2] / sha256

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
        """Remove partly written files of dead processes, and old archives; returns how many of the former."""
        _sweep(self._derived, DERIVED_SECONDS)
        return _sweep(self._incoming, _ABANDONED_SECONDS)

    def grant_upload(self, sha256: str, size: int, direct: Caller | None = None) -> UploadGrant:
        path = self.path(sha256)
        with self._locked():
            if path.is_file() and path.stat().st_size == size:
                os.utime(path)
                return UploadGrant(exists=True)
        token = self._grants.sign(sha256, size)
        link = self._links.upload(token, direct) if direct is not None and self._links is not None else None
        return UploadGrant(exists=False, url=link or f"/internal/v1/objects/{token}")

    def complete_upload(self, token: str, sha256: str, size: int) -> None:
        """Nothing to do: bytes come through the service, which verified them."""
        if not self.exists(sha256):
            raise ObjectMissing(sha256)

    def presign(self, sha256: str, filename: str, media_type: str, caller: Caller) -> str | None:
        if self._links is None:
            return None
        return self._links.download(Linked("object", sha256, filename, media_type), caller)

    def presign_derived(self, name: str, media_type: str, blocks: Callable[[], Iterable[bytes]], caller: Caller) -> str | None:
        if self._links is None or self._links.base(caller) is None:
            return None
        if not self._derived_there(name, blocks):
            return None
        return self._links.download(Linked("derived", name, name.rpartition("/")[2], media_type), caller)

    def derive(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> BinaryIO | None:
        return self.open_derived(name) if self._derived_there(name, blocks) else None

    def open_derived(self, name: str) -> BinaryIO:
        """What a link to `name` opens. Raises ObjectMissing once it was swept."""
        try:
            return self._derived_path(name).open("rb")
        except FileNotFoundError:
            raise ObjectMissing(name) from None

    def proxy_headers(self, sha256: str) -> dict[str, str]:
        way, _, prefix = (self._offload or "").partition(":")
        if way == "x-accel-redirect":
            return {"X-Accel-Redirect": f"{prefix.rstrip('/')}/{sha256[:2]}/{sha256}"}
        return {"X-Sendfile": str(self.path(sha256).absolute())} if way == "x-sendfile" else {}

    def free_bytes(self) -> float:
        return shutil.disk_usage(self._directory).free

    def check(self) -> None:
        incoming = self.receive()
        try:
            incoming.write(secrets.token_bytes(32))
            stored = incoming.commit()
        finally:
            incoming.abandon()
        with self.open(stored.sha256) as source:
            if hashlib.sha256(source.read()).hexdigest() != stored.sha256:
                raise OSError(f"{self._directory} gives back other bytes than were written")
        self.delete(stored.sha256)

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

    def _derived_there(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> bool:
        """Whether what is derived is there and young, having been made where it was not."""
        path = self._derived_path(name)
        if _age(path) > DERIVED_LINK_SECONDS:
            try:
                self._write(path, blocks())
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                log.warning("no room for %s; the API sends it itself", name)
                return False
        return True

    def _derived_path(self, name: str) -> Path:
        return self._derived / hashlib.sha256(name.encode()).hexdigest()

    def _write(self, path: Path, blocks: Iterable[bytes]) -> None:
        """The file appears whole or not at all."""
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for block in blocks:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)

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


def _age(path: Path) -> float:
    """Seconds since the file was written; infinite where there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _sweep(folder: Path, seconds: float) -> int:
    """Remove files that were not written to for so long; returns how many."""
    removed = 0
    for path in folder.iterdir():
        try:
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue  # its writer is alive and has just moved or removed it
    return removed


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
