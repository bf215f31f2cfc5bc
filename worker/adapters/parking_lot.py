"""Stores the adapters of jobs without a slot: in memory up to a budget, then on disk, and in memory again while the disk is
full. Knows no order and no reasons.

A fetched checkpoint stays on disk as it is, and is read only when its job gets a slot.
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
        """`cache`: evicted to make room where the disk is full."""
        self._left = budget
        self._scratch, self._cache = scratch, cache
        self._in_memory: dict[object, Tensors] = {}
        self._on_disk: dict[object, Path] = {}
        self._spilled: dict[object, str] = {}  # files that the lot wrote itself

    def park(self, key: object, tensors: Tensors) -> None:
        """Store a job's tensors until they are taken."""
        if tensors.bytes > self._left and self._spill(key, tensors):
            return
        self._left -= tensors.bytes
        self._in_memory[key] = tensors

    def _spill(self, key: object, tensors: Tensors) -> bool:
        """Write the tensors to disk; False where it is full even after evicting the cache."""
        name = f"parked-{uuid4().hex}"  # not by content: equal jobs must not share one file
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
        """Use a checkpoint file as this job's stored state."""
        self._on_disk[key] = path

    def look(self, key: object) -> Tensors | None:
        """The job's stored tensors, which stay; None if it never had a slot."""
        if key in self._in_memory:
            return self._in_memory[key]
        return load_tensors(self._on_disk[key]) if key in self._on_disk else None

    def take(self, key: object) -> Tensors | None:
        """The job's stored tensors, removed from the lot."""
        tensors = self.look(key)
        self.leave(key)
        return tensors

    def leave(self, key: object) -> None:
        """Drop what is stored for this job."""
        tensors = self._in_memory.pop(key, None)
        if tensors is not None:
            self._left += tensors.bytes
        self._on_disk.pop(key, None)
        if key in self._spilled:
            self._scratch.drop(self._spilled.pop(key))
