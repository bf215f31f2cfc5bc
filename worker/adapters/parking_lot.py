"""Where jobs wait that hold no slot: in memory up to a budget, beyond it on disk, and in memory again while the disk is full.
Knows no order and no reasons.

A checkpoint that was fetched waits on disk as it came, and is read only when its job gets a slot.
"""

import logging
from pathlib import Path
from uuid import uuid4

from worker.adapters.job_checkpoint import Progress, Tensors, load_tensors, save
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache

log = logging.getLogger(__name__)


class ParkingLot:
    def __init__(self, budget: int, scratch: ObjectCache, cache: NodeCache | None = None) -> None:
        """`cache`: gives its room where the disk is full."""
        self._left = budget
        self._scratch, self._cache = scratch, cache
        self._in_memory: dict[object, Tensors] = {}
        self._on_disk: dict[object, Path] = {}
        self._spilled: dict[object, str] = {}  # the files that are only ours

    def park(self, key: object, tensors: Tensors) -> None:
        """Keep a job's tensors until they are taken."""
        if tensors.bytes > self._left and self._spill(key, tensors):
            return
        self._left -= tensors.bytes
        self._in_memory[key] = tensors

    def _spill(self, key: object, tensors: Tensors) -> bool:
        """Write them to disk; False where it is full, caches given up and all."""
        name = f"parked-{uuid4().hex}"  # not by content: two jobs alike must not lose one file to each other
        for last in (False, True):
            try:
                kept = self._scratch.keep(lambda path: save(path, Progress(), tensors), name)
            except DiskFull as error:
                if last or self._cache is None or not self._cache.evict(0):
                    log.warning("a parked job stays in memory, beyond MOTET_WORKER_PARK_BYTES: %s", error)
                    return False
            else:
                self._on_disk[key], self._spilled[key] = kept.path, name
                return True
        return False

    def adopt(self, key: object, path: Path) -> None:
        """A checkpoint file serves as this job's place."""
        self._on_disk[key] = path

    def look(self, key: object) -> Tensors | None:
        """What is kept for the job, which stays; None if it never had a slot."""
        if key in self._in_memory:
            return self._in_memory[key]
        return load_tensors(self._on_disk[key]) if key in self._on_disk else None

    def take(self, key: object) -> Tensors | None:
        """What was kept for the job, which is kept no longer."""
        tensors = self.look(key)
        self.leave(key)
        return tensors

    def leave(self, key: object) -> None:
        """Keep nothing more for this job."""
        tensors = self._in_memory.pop(key, None)
        if tensors is not None:
            self._left += tensors.bytes
        self._on_disk.pop(key, None)
        if key in self._spilled:
            self._scratch.drop(self._spilled.pop(key))
