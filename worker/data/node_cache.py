"""The node's disk cache of tenants' data, which saves fetching or computing it again, and its eviction.

    <scratch>/tenants/<tenant>/files/<sha256 of a file>/<sha256>       the file as it was uploaded
                                                        streams/<key>  its rows as tokens (token_stream.py)
                                                        references/<key>  log-probabilities under dpo
    <scratch>/tenants/<tenant>/objects/<sha256>                        checkpoints and adapters (object_cache.py)

Tenants share nothing, and everything made from a file lies in one folder, which is erased with the file. Several processes of
the node use the cache at once: `remove` renames before it deletes, and a process that misses an entry makes it again.
Knows no tokenizer, no tensors and no network.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from worker.data.disk_full import DiskFull, room_needed
from worker.data.object_cache import ObjectCache

log = logging.getLogger(__name__)

HEADER = "header.json"  # of a token stream; its readers hold a shared lock on it
LOCK = ".lock"  # beside a stream that is being made
_NOBODY = "_"  # the folder of placements whose service does not name tenants
_BUDGET_SHARE = 10  # one part in so many of the disk, where no budget is set
_FREED_SHARE = 10  # one part in so many of the budget is free after an eviction, so that not every entry needs one
_KEPT_SECONDS = 24 * 3600  # for what a dead process left half-removed or half-written


@dataclass(frozen=True)
class _Entry:
    """A cache entry, and when it was last used. It can be made again."""

    path: Path
    bytes: int
    used_at: float


class NodeCache:
    """`budget`: bytes of files, streams and references of all tenants; None is a tenth of the disk. From any thread."""

    def __init__(self, folder: Path, budget: int | None = None) -> None:
        self.folder, self._budget = folder, budget
        self._lock, self._spare = threading.RLock(), 0  # bytes that may be added before entries are listed again
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def budget(self) -> int:
        return self._budget if self._budget is not None else shutil.disk_usage(self.folder).total // _BUDGET_SHARE

    def objects(self, tenant_id: str) -> ObjectCache:
        """A tenant's checkpoints and adapters."""
        return ObjectCache(self._objects(tenant_id))

    def drop_object(self, tenant_id: str, sha256: str) -> None:
        """Remove one of a tenant's checkpoints and adapters, if it is here. Makes no folder: a full disk would not take it."""
        (self._objects(tenant_id) / sha256).unlink(missing_ok=True)

    def file(self, tenant_id: str, sha256: str) -> "FileCache":
        """The entries of one of the tenant's files."""
        return FileCache(self._tenant(tenant_id) / "files" / sha256, sha256, self)

    def files(self) -> list[tuple[str, str]]:
        """(tenant, sha256) of every file that has an entry."""
        return [
            ("" if path.parts[-3] == _NOBODY else path.parts[-3], path.name)
            for path in self.folder.glob("*/files/*")
            if not path.name.startswith("gone-")
        ]

    def erase(self, tenant_id: str, sha256: str) -> None:
        """Remove all entries of this file, and everything computed with it."""
        tenant = self._tenant(tenant_id)
        for path in [tenant / "files" / sha256, *tenant.glob(f"files/*/references/*{sha256}*")]:
            remove(path)

    @contextmanager
    def relief(self, *keep: Path) -> Iterator[None]:
        """Where the body finds the disk full, evict everything but `keep` and raise the error again: a retry may find room."""
        try:
            yield
        except DiskFull:
            self.evict(0, keep)
            raise

    def added(self, count: int) -> None:
        """An entry of so many bytes was added: evicts where the budget may be exceeded by what this process knows. What others
        have added since is seen by the daemon, which evicts every minute (cache_upkeep.py)."""
        with self._lock:
            self._spare -= count
            if self._spare < 0:
                self.evict()

    def evict(self, budget: int | None = None, keep: Container[Path] = ()) -> int:
        """Remove the least recently used entries until `budget` is met; without one, until a part of the setting is free where
        that is exceeded. Returns the bytes removed. Keeps a stream that a process has open: removing it would free nothing.

        Lists all entries, 0.07 ms each, and gives up the interpreter's lock for each.
        """
        with self._lock:
            entries = sorted(self._entries(), key=lambda entry: entry.used_at)
            held, removed = sum(entry.bytes for entry in entries), 0
            allowed = self._allowed(held) if budget is None else budget
            for entry in entries:
                if held - removed <= allowed:
                    break
                if entry.path not in keep and not _in_use(entry.path):
                    remove(entry.path)
                    removed += entry.bytes
            self._spare = self.budget - (held - removed)
        if removed:
            log.info("%d of %d bytes of cached data were removed, the least recently used", removed, held)
        return removed

    def _allowed(self, held: int) -> int:
        budget = self.budget
        return budget if held <= budget else budget - budget // _FREED_SHARE

    def sweep(self) -> None:
        """Remove leftovers of dead processes, checkpoints and adapters unused for a day, and empty folders."""
        before = time.time() - _KEPT_SECONDS
        for path in [*self.folder.glob("*/files/gone-*"), *self.folder.glob("*/files/*/**/gone-*")]:
            shutil.rmtree(path, ignore_errors=True)
        for path in [*self.folder.glob("*/files/*/new-*"), *self.folder.glob("*/files/*/*/new-*")]:
            if _used_at(path) < before:
                remove(path)
        for objects in self.folder.glob("*/objects"):
            ObjectCache(objects).sweep()
        for file in self.folder.glob("*/files/*"):
            if _used_at(file) < before and not list(_kept(file)):
                remove(file)

    def _entries(self) -> Iterator[_Entry]:
        for file in self.folder.glob("*/files/*"):
            for path in _kept(file):
                with suppress(FileNotFoundError):
                    yield _Entry(path, size_of(path), _used_at(path / HEADER if path.is_dir() else path))

    def _tenant(self, tenant_id: str) -> Path:
        return self.folder / (tenant_id or _NOBODY)

    def _objects(self, tenant_id: str) -> Path:
        return self._tenant(tenant_id) / "objects"


@dataclass(frozen=True)
class FileCache:
    """Entries of one file, all below `folder`."""

    folder: Path
    sha256: str
    cache: NodeCache

    @property
    def content(self) -> ObjectCache:
        """Holds the file itself, by its sha256."""
        return ObjectCache(self.folder)

    @property
    def references(self) -> ObjectCache:
        return ObjectCache(self.folder / "references")

    @property
    def streams(self) -> Path:
        """Made with the folder of references: the loop, which uses that, does not wait for a full disk. Raises DiskFull."""
        with room_needed(self.folder):
            for name in ("references", "streams"):
                (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.folder / "streams"


def _kept(file: Path) -> Iterator[Path]:
    """Finished entries of a file: itself, streams, references."""
    for path in [file / file.name, *file.glob("streams/*"), *file.glob("references/*")]:
        if path.exists() and not path.name.startswith(("new-", "gone-")) and path.suffix != LOCK:
            yield path


def remove(path: Path) -> None:
    """Delete a path at once, even while it is read. Renames a folder first, so that no process finds half of it."""
    with suppress(FileNotFoundError):
        if not path.is_dir():
            path.unlink()
            return
        gone = Path(tempfile.mkdtemp(prefix="gone-", dir=path.parent))
        os.rename(path, gone)  # onto an empty folder
        shutil.rmtree(gone, ignore_errors=True)


def _in_use(path: Path) -> bool:
    """Whether a process has the stream open (see TokenStream), or writes it."""
    if not path.is_dir():
        return False
    try:
        with (path / HEADER).open("r+b") as header:
            fcntl.flock(header, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return time.time() - _used_at(path) < _KEPT_SECONDS  # it is being written
    return False


def size_of(path: Path) -> int:
    """Bytes of a file, or of those in a folder."""
    if path.is_dir():
        return sum(part.stat().st_size for part in path.iterdir())
    return path.stat().st_size


def _used_at(path: Path) -> float:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0
