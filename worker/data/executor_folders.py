"""Where an executor keeps files: what is learned of bases, tenants' data, and a folder that it alone owns.

    <scratch>/objects             profiles of bases and the like, which every process of the node may use
    <scratch>/tenants             tenants' data (node_cache.py)
    <scratch>/executors/<id>      parked adapters, checkpoints that jobs begin with, what is being uploaded

Nobody sweeps an executor's own files by their age: a job may wait for rows for days. Another process removes them once their
executor is dead.
"""

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from worker.data.node_cache import NodeCache
from worker.data.object_cache import OBJECTS, ObjectCache

EXECUTORS = "executors"  # the folder of a node's scratch that holds those of executors
_LOCK = ".lock"  # beside a folder; its process holds a lock on it


class ExecutorFolders:
    """scratch: of bases; own: new, locked by this process as long as it lives; cache: of tenants."""

    def __init__(self, scratch: Path, cache_bytes: int | None) -> None:
        self.scratch = ObjectCache(scratch / OBJECTS)
        self.cache = NodeCache(scratch / "tenants", cache_bytes)
        (scratch / EXECUTORS).mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = scratch / EXECUTORS / uuid4().hex
        self._lock = folder.with_suffix(_LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # before there is a folder that might seem to be without a process
        self.own = ObjectCache(folder)

    def sweep(self) -> None:
        """Remove what no process has touched for a day, and what dead executors have left."""
        self.scratch.sweep()
        remove_dead(self.own.folder.parent)


def remove_dead(executors: Path) -> None:
    """Remove the folders of executors that have ended."""
    for lock in executors.glob(f"*{_LOCK}"):
        folder = lock.with_suffix("")
        if not folder.exists():
            continue  # its process is about to make it
        with suppress(FileNotFoundError, BlockingIOError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink()
