"""A folder of objects, named by the sha256 of their bytes or of their inputs. Everything in it can be fetched or made again.

An object appears atomically: written to a temporary file, synced, hashed, then renamed. Knows no leases and no network.
"""

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

from worker.data.disk_full import room_needed

_BLOCK = 2**20
OBJECTS = "objects"  # the folder of a node's scratch that holds what belongs to bases alone
_KEPT_SECONDS = 24 * 3600
_UNLINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # another disk, or one without hard links


class WrongBytes(Exception):
    """The fetched bytes do not have the requested sha256."""


@dataclass(frozen=True)
class Kept:
    """An object in the folder."""

    path: Path
    sha256: str
    bytes: int


class ObjectCache:
    def __init__(self, folder: Path) -> None:
        """Makes the folder. Raises DiskFull."""
        self.folder = folder
        with room_needed(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.exists() else None

    def fetch(self, sha256: str, blocks: Callable[[], Iterable[bytes]]) -> Path:
        """The object of this sha256, downloaded from `blocks()` unless it is here. Raises DiskFull, and WrongBytes where the
        sha256 differs."""
        here = self.find(sha256)
        if here is not None:
            os.utime(here)
            return here

        def pour(path: Path) -> None:
            with path.open("wb") as file:
                for block in blocks():
                    file.write(block)

        kept = self.keep(pour)
        if kept.sha256 != sha256:
            self.drop(kept.sha256)
            raise WrongBytes(f"fetched {kept.bytes} bytes with sha256 {kept.sha256}; asked was for {sha256}")
        return kept.path

    def keep(self, write: Callable[[Path], None], name: str | None = None) -> Kept:
        """Store what `write` writes to the path it is given. `name`: in place of the sha256 of its bytes. Raises DiskFull, and
        stores nothing, where there is no room."""
        with room_needed(self.folder):
            return self._keep(write, name)

    def _keep(self, write: Callable[[Path], None], name: str | None) -> Kept:
        descriptor, new = tempfile.mkstemp(prefix="new-", dir=self.folder)
        os.close(descriptor)
        try:
            write(Path(new))
            return self._stored(Path(new), name)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(new)

    def adopt(self, file: Path, name: str) -> Kept:
        """Store a file of the same disk by moving it here. Raises DiskFull, and leaves it, where there is no room."""
        with room_needed(self.folder):
            return self._stored(file, name)

    def link(self, file: Path, name: str) -> Path:
        """The same file under this name here too, whatever becomes of the other. Raises FileNotFoundError, and DiskFull where a
        file of another disk has to be copied and there is no room."""
        path, new = self.folder / name, self.folder / f"new-{uuid4()}"
        try:
            os.link(file, new)
        except OSError as error:
            if error.errno not in _UNLINKABLE:
                raise
            self.keep(partial(_copied, file), name)
        else:
            new.rename(path)
            new.unlink(missing_ok=True)  # it stays where the path was the same file already
        return path

    def _stored(self, new: Path, name: str | None) -> Kept:
        digest, size = hashlib.sha256(), 0
        with new.open("r+b") as file:
            os.fsync(file.fileno())
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
        path = self.folder / (name or digest.hexdigest())
        new.rename(path)
        return Kept(path, digest.hexdigest(), size)

    def drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self.folder / name).unlink()

    def sweep(self) -> None:
        """Remove objects, half-written or whole, that no process has touched for a day."""
        before = time.time() - _KEPT_SECONDS
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime >= before:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _copied(file: Path, new: Path) -> None:
    shutil.copyfile(file, new)
