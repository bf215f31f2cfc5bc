"""Where jobs wait that hold no slot: in memory up to a budget, beyond it on disk. Knows no order and no reasons.

A checkpoint that was fetched waits on disk as it came, and is read only when its job gets a slot.
"""

from pathlib import Path

from worker.adapters.job_checkpoint import Progress, Tensors, load_tensors, save
from worker.data.object_cache import ObjectCache


class ParkingLot:
    def __init__(self, budget: int, scratch: ObjectCache) -> None:
        self._left = budget
        self._scratch = scratch
        self._in_memory: dict[object, Tensors] = {}
        self._on_disk: dict[object, Path] = {}
        self._spilled: dict[object, str] = {}  # the files that are only ours

    def park(self, key: object, tensors: Tensors) -> None:
        """Keep a job's tensors until they are taken."""
        if tensors.bytes <= self._left:
            self._left -= tensors.bytes
            self._in_memory[key] = tensors
        else:
            kept = self._scratch.keep(lambda path: save(path, Progress(), tensors))
            self._on_disk[key], self._spilled[key] = kept.path, kept.sha256

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
