"""The node's disk cache of fetched bases, by content, and its eviction.

    <folder>/<sha256 over paths and sha256 of the files>/         a whole base
                                                      .partial/   one that is being fetched, or was when its process died
                                                      .lock       locked: exclusive by who fetches or evicts, shared by who
                                                                  trains on it; its date is that of the last use
             rate                                                 bytes per second of what was fetched here

Several processes of the node use the cache at once; one fetches, others wait for it. Knows no network and no leases.
"""

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from contract.messages.placement_messages import BaseFile
from contract.model_revision import content_key
from contract.wording.size_words import gigabytes
from worker.data.disk_full import DiskFull, room_needed
from worker.data.disk_sync import sync

log = logging.getLogger(__name__)

BASES = "bases"  # the cache's folder below MOTET_WORKER_DIR
_PARTIAL, _LOCK, _GONE = ".partial", ".lock", ".gone"
_RATE, _NEWEST, _LEAST = "rate", 0.5, 16 * 2**20  # a file; the weight of the newest measurement; fewer bytes tell no rate
_BUDGET_SHARE = 2  # one part in so many of the disk, where no budget is set


class BaseTooLarge(ValueError):
    """The base is larger than all that the node may keep."""


@dataclass(frozen=True)
class _Entry:
    """A base, or the beginning of one."""

    key: str
    bytes: int
    used_at: float


class HeldBase:
    """A whole base in `folder`, which is not evicted until `release`, or until this process ends."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder, self._lock = folder, lock

    def release(self) -> None:
        os.close(self._lock)


class BaseCache:
    """`budget`: bytes of all bases; None is half of the disk."""

    def __init__(self, folder: Path, budget: int | None = None) -> None:
        self.folder, self._budget = folder, budget
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def budget(self) -> int:
        return self._budget if self._budget is not None else shutil.disk_usage(self.folder).total // _BUDGET_SHARE

    def hold(self, files: Iterable[BaseFile], fetch: Callable[[BaseFile, Path], None], wait: Callable[[int], None]) -> HeldBase:
        """The base of these files, held. `fetch` completes one file at a path; `wait` is called, with the bytes that are there,
        while another process fetches, and may raise. Raises BaseTooLarge, DiskFull, and what `fetch` and `wait` raise."""
        with room_needed(self.folder):
            return self._hold(tuple(files), fetch, wait)

    def _hold(
        self, files: tuple[BaseFile, ...], fetch: Callable[[BaseFile, Path], None], wait: Callable[[int], None]
    ) -> HeldBase:
        key = key_of(files)
        lock = os.open(self.folder / (key + _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                if _lock(lock, fcntl.LOCK_SH) and (self.folder / key).is_dir():
                    os.utime(lock)
                    return HeldBase(self.folder / key, lock)
                if _lock(lock, fcntl.LOCK_EX):
                    os.utime(lock)
                    self._fetch(key, files, fetch)
                else:
                    wait(_size(self.folder / (key + _PARTIAL)))
        except BaseException:
            os.close(lock)
            raise

    def _fetch(self, key: str, files: tuple[BaseFile, ...], fetch: Callable[[BaseFile, Path], None]) -> None:
        """Fetch all files, under an exclusive lock, and let the base appear as a whole."""
        whole, partial = self.folder / key, self.folder / (key + _PARTIAL)
        if whole.is_dir():
            return
        needed = sum(file.bytes for file in files)
        missing, began = needed - _size(partial), time.monotonic()
        self._make_room(key, needed, missing)
        partial.mkdir(mode=0o700, exist_ok=True)
        for file in files:
            (partial / file.path).parent.mkdir(mode=0o700, exist_ok=True)
            fetch(file, partial / file.path)
        if missing >= _LEAST:
            self._note_rate(missing / max(1e-3, time.monotonic() - began))
        for path in partial.rglob("*"):
            sync(path)
        sync(partial)
        os.rename(partial, whole)
        sync(self.folder)

    def _note_rate(self, rate: float) -> None:
        before = fetch_rate(self.folder)
        new = self.folder / f"{_RATE}{_PARTIAL}"
        new.write_text(str(rate if before is None else _NEWEST * rate + (1 - _NEWEST) * before))
        new.rename(self.folder / _RATE)

    def _make_room(self, key: str, needed: int, missing: int) -> None:
        if needed > self.budget:
            raise BaseTooLarge(
                f"it takes {gigabytes(needed)}, and this node keeps at most {gigabytes(self.budget)} of bases; raise "
                "MOTET_WORKER_BASE_BYTES there, or give MOTET_WORKER_DIR a larger disk"
            )
        self.evict(self.budget - needed, keep=key)
        for entry in self._oldest():
            if shutil.disk_usage(self.folder).free >= missing:
                return
            if entry.key != key:
                self._remove(entry)
        free = shutil.disk_usage(self.folder).free
        if free < missing:
            raise DiskFull(
                f"the disk of {self.folder} has {gigabytes(free)} left, and the base needs {gigabytes(missing)} more; make "
                "room there, and the work goes on by itself"
            )

    def evict(self, budget: int | None = None, keep: str | None = None) -> int:
        """Remove the least recently used bases until those beside `keep` take at most `budget` bytes (or the setting); returns
        the bytes removed. One that a process trains on, or fetches, stays."""
        allowed = self.budget if budget is None else budget
        entries = [entry for entry in self._oldest() if entry.key != keep]
        held, removed = sum(entry.bytes for entry in entries), 0
        for entry in entries:
            if held - removed <= allowed:
                break
            removed += self._remove(entry)
        return removed

    def _oldest(self) -> list[_Entry]:
        entries = [_Entry(lock.stem, self._taken(lock.stem), lock.stat().st_mtime) for lock in self.folder.glob("*" + _LOCK)]
        return sorted((entry for entry in entries if entry.bytes), key=lambda entry: entry.used_at)

    def _taken(self, key: str) -> int:
        return sum(_size(self.folder / (key + end)) for end in ("", _PARTIAL, _GONE))

    def _remove(self, entry: _Entry) -> int:
        with (self.folder / (entry.key + _LOCK)).open("r+b") as lock:
            if not _lock(lock.fileno(), fcntl.LOCK_EX):
                return 0
            whole, gone = self.folder / entry.key, self.folder / (entry.key + _GONE)
            shutil.rmtree(gone, ignore_errors=True)  # of a process that died here
            if whole.is_dir():
                os.rename(whole, gone)
            shutil.rmtree(gone, ignore_errors=True)
            shutil.rmtree(self.folder / (entry.key + _PARTIAL), ignore_errors=True)
        log.info("a base of %s was removed, the least recently used", gigabytes(entry.bytes))
        return entry.bytes


def key_of(files: Iterable[BaseFile]) -> str:
    """The base's name in a cache: sha256 over the lines "<path> <sha256>\\n" of its files, sorted by path."""
    return content_key((file.path, file.sha256) for file in files)


def held_bases(folder: Path) -> list[str]:
    """The keys of the whole bases in this cache, sorted; none where there is no cache yet."""
    try:
        return sorted(path.name for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{64}", path.name))
    except FileNotFoundError:
        return []


def fetch_rate(folder: Path) -> float | None:
    """Bytes per second of the bases that were fetched into this cache; None before the first large one."""
    try:
        return float((folder / _RATE).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _lock(descriptor: int, how: int) -> bool:
    """Whether the lock was free. A lock that was held before is exchanged, or lost where it is not free."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except FileNotFoundError:
        return 0
