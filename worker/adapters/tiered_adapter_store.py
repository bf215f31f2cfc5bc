"""Stores the adapters of an executor's jobs and moves them between GPU, host memory and disk: one location per job, on any
replica. Chooses no jobs.

A job that trains lies in rows of a replica's arena. A parked one keeps its rows until another job needs them; then it moves to
host memory up to a budget, and to disk beyond that. Every move writes the new copy before it frees the old one. The arenas and
what lies in them are their replicas' own (arena_adapters.py), in whatever processes these are.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from torch import Tensor

from worker.adapters.arena_adapters import ReplicaAdapters, Source
from worker.adapters.job_checkpoint import Tensors, UnreadableWeights, load_tensors, mean_of, save
from worker.adapters.location_types import AdapterSpec, ArenaRows, Location, OnDisk, PinnedHost, Unmade
from worker.adapters.weights_copies import WeightsCopies, WeightsCopy, itself
from worker.data.disk_full import DiskFull
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache
from worker.model.arena import AdapterState, rows_for
from worker.policy.job_record import JobKey, JobProgress

log = logging.getLogger(__name__)

T = TypeVar("T")

_APART = 4  # one part in so many of the budget for parked adapters is there besides, for weights that lie apart from their jobs


class AdapterStore:
    """`replicas`: the adapters in each replica's arena, by its number. The loop's thread alone moves adapters. `lost`: jobs
    of whose weights some could not be read back, and why: they cannot go on, and copies of them are not to be had."""

    def __init__(
        self,
        replicas: Sequence[ReplicaAdapters],
        host_bytes: int,
        files: ObjectCache,
        on_lost: Callable[[JobKey, str], None],
        cache: NodeCache | None = None,
    ) -> None:
        """host_bytes: of main memory for parked adapters, and a quarter more for what `keep_apart` is given. files: for those
        beyond, which nobody else removes. on_lost: told of each such job once. cache: evicted to make room where the disk is
        full."""
        self._replicas, self._on_lost = replicas, on_lost
        self.lost: dict[JobKey, str] = {}
        self._host_bytes_left = host_bytes
        self._files, self._cache = files, cache
        self._apart = WeightsCopies("adapters that wait for storage or texts", host_bytes / _APART, files.folder)
        self._specs: dict[JobKey, AdapterSpec] = {}
        self._locations: dict[JobKey, Location] = {}  # parked jobs in the order in which they were parked

    # ---- looking -----------------------------------------------------------------------------------------------------

    def location(self, key: JobKey) -> Location | None:
        """Where the job's adapter lies; None for a job that is not here."""
        return self._locations.get(key)

    def trains_on(self, key: JobKey) -> int | None:
        """The replica in whose rows the job trains; None for a job that does not train now."""
        at = self._locations.get(key)
        return at.replica if isinstance(at, ArenaRows) and at.trains else None

    def mean_weights(self, key: JobKey, count: int) -> Tensor | None:
        """The mean of the job's weights at its so many lowest losses, wherever it lies, float32 [rank, W]; None before the
        first."""
        at = self._locations.get(key)
        if isinstance(at, ArenaRows):
            return self._read_back(key, lambda: self._replicas[at.replica].mean_weights(key, count))
        found = None if at is None or isinstance(at, Unmade) else self.tensors([key]).get(key)
        return mean_of(found.lowest[:count]) if found is not None else None

    def row_range(self, key: JobKey) -> tuple[int, int] | None:
        """The arena rows, [first, stop), of a job that trains."""
        at = self.trains_on(key)
        return self._replicas[at].rows(key) if at is not None else None

    def weights(self, keys: Iterable[JobKey]) -> dict[JobKey, Tensor]:
        """Host copies of the jobs' weights as they are now, wherever they lie, float32 [rank, W]."""
        return {key: tensors.adapter.weights for key, tensors in self._copies(keys, bare=True).items()}

    def tensors(self, keys: Iterable[JobKey]) -> dict[JobKey, Tensors]:
        """Host copies of the jobs' adapters as they are now, wherever they lie."""
        return self._copies(keys, bare=False)

    def _copies(self, keys: Iterable[JobKey], bare: bool) -> dict[JobKey, Tensors]:
        found: dict[JobKey, Tensors] = {}
        arenas: dict[int, list[JobKey]] = {}
        for key in keys:
            match self._locations[key]:
                case ArenaRows(replica):
                    arenas.setdefault(replica, []).append(key)
                case PinnedHost(tensors):
                    found[key] = tensors
                case OnDisk(path):
                    read = self._read_back(key, partial(load_tensors, path, bare))
                    found |= {key: read} if read is not None else {}
                case Unmade():
                    raise ValueError(f"{key} has no adapter yet")
        begun = [self._replicas[replica].begin_tensors(arenas[replica], bare) for replica in sorted(arenas, reverse=True)]
        for copies in reversed(begun):  # the first replica copies in this thread, while the others do
            found |= copies()
        self._note_lost(found)
        return found

    def _note_lost(self, copies: Mapping[JobKey, Tensors]) -> None:
        for key, tensors in copies.items():
            if tensors.lost is not None:
                self.lose(key, tensors.lost)

    def _read_back(self, key: JobKey, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except UnreadableWeights as error:
            self.lose(key, str(error))
            return None

    def lose(self, key: JobKey, why: str) -> None:
        """Some of the job's weights could not be read back."""
        if key not in self.lost:
            self.lost[key] = why
            self._on_lost(key, why)

    def keep_apart(self, weights: Tensor) -> WeightsCopy:
        """Keep weights, float32 [rank, W], that their job does not need: it has ended, or trains on while texts are generated
        with these. In main memory within the budget, in a file beyond; waits while they come faster than files are written."""
        return self._apart.keep(partial(itself, weights.contiguous()), weights.nbytes)

    def copied_apart(self, key: JobKey) -> WeightsCopy | None:
        """The same of the job's weights as they are now; None where they are lost. Of one job at a time: main memory may not
        hold copies of all."""
        weights = self.weights([key]).get(key)
        return self.keep_apart(weights) if weights is not None else None

    # ---- arrival and departure ---------------------------------------------------------------------------------------

    def add(self, key: JobKey, spec: AdapterSpec, checkpoint: Path | None = None, drawn: Tensor | None = None) -> None:
        """Take a job in. Its adapter is that of the checkpoint, which is read when the job gets rows, and then removed if it is
        one of `files`; else its first weights: `drawn`, float32 [rank, W], where the host's budget holds them, or drawn when it
        gets rows."""
        self._specs[key] = spec
        self._locations[key] = OnDisk(checkpoint, checkpoint.name) if checkpoint is not None else Unmade()
        if checkpoint is None and drawn is not None and drawn.nbytes <= self._host_bytes_left:
            self._host_bytes_left -= drawn.nbytes
            self._locations[key] = PinnedHost(Tensors(AdapterState(drawn)))

    def remove(self, key: JobKey) -> None:
        """Free everything that the job holds."""
        at = self._locations.pop(key, None)
        self._specs.pop(key, None)
        self.lost.pop(key, None)
        if isinstance(at, ArenaRows):
            self._replicas[at.replica].free(key)
        elif at is not None:
            self._drop(at)

    # ---- moving ------------------------------------------------------------------------------------------------------

    def allocate_rows(self, replica: int, keys: Sequence[JobKey]) -> dict[JobKey, str]:
        """Give each job rows on this replica, with its stored adapter or its first weights. Returns the jobs for which the
        device has no memory, and why: they keep waiting. Those whose adapter cannot be read have no rows either."""
        for key in keys:
            at = self._locations[key]
            if isinstance(at, ArenaRows) and at.replica != replica:
                self.evict(key)
        lacking: dict[JobKey, str] = {}
        for place, key in enumerate(keys):
            at = self._locations[key]
            if isinstance(at, ArenaRows):
                self._locations[key] = ArenaRows(replica)
                continue
            wanted = sum(rows_for(self._specs[later].rank) for later in keys[place:] if not self._in_arena(later))
            allocated = self._replicas[replica].allocate(
                key, self._specs[key], _source(at), wanted, self._may_leave(replica, keys)
            )
            self.keep_evicted(allocated.evicted)
            if allocated.lost:
                self.lose(key, str(allocated.lacking))
            elif allocated.lacking is not None:
                log.warning("%s: no memory for adapter rows: %s", key, allocated.lacking)
                lacking[key] = allocated.lacking
            else:
                self._locations[key] = ArenaRows(replica)
                self._drop(at)
        return lacking

    def may_leave(self, replica: int) -> list[JobKey]:
        """The parked jobs in this replica's arena, longest parked first."""
        return self._may_leave(replica, ())

    def _may_leave(self, replica: int, staying: Sequence[JobKey]) -> list[JobKey]:
        parked = ArenaRows(replica, trains=False)
        return [key for key, at in self._locations.items() if at == parked and key not in staying]

    def keep_evicted(self, evicted: Mapping[JobKey, Tensors]) -> None:
        """Store the adapters of jobs that lost their rows."""
        self._note_lost(evicted)
        for key, tensors in evicted.items():
            self._locations[key] = self._stored(tensors)

    def note_lowest(self, key: JobKey, place: int, most: int) -> None:
        """Keep a host copy of the weights of a job that trains, whose loss has this place, from 0, among its lowest so far, and
        of the first `most` alone, of which it is one."""
        self._replicas[self._training(key)].note_lowest(key, place, most)

    def read_lowest(self, key: JobKey, count: int) -> bool:
        """Begin to read the weights at its so many lowest losses of a job that takes no further step, beside the caller: see
        `lowest_read`. Whether it trains, and has any; else nothing is read."""
        at = self.trains_on(key)
        if at is None or not count:
            return False
        self._replicas[at].read_lowest(key, count)
        return True

    def lowest_read(self, key: JobKey) -> bool:
        """Whether they are read: `restore_mean` and `mean_weights` wait for no disk."""
        return self._replicas[self._training(key)].lowest_read(key)

    def restore_mean(self, key: JobKey, count: int) -> bool:
        """Write the mean of the weights at its so many lowest losses into the rows of a job that trains, for good. Whether it
        trains, and has any."""
        at = self.trains_on(key)
        return at is not None and bool(self._read_back(key, lambda: self._replicas[at].restore_mean(key, count)))

    def park(self, key: JobKey) -> None:
        """Stop training the job. It keeps its rows until another job needs them."""
        at = self._training(key)
        del self._locations[key]  # so that it is the last of those parked
        self._locations[key] = ArenaRows(at, trains=False)
        self._replicas[at].park(key)

    def evict(self, key: JobKey) -> None:
        """Move a parked job out of the arena, to where every replica may continue it."""
        at = self._locations[key]
        if isinstance(at, ArenaRows) and not at.trains:
            self.keep_evicted({key: self._replicas[at.replica].evict(key)})

    # ---- memory and disk ---------------------------------------------------------------------------------------------

    def _in_arena(self, key: JobKey) -> bool:
        return isinstance(self._locations[key], ArenaRows)

    def _training(self, key: JobKey) -> int:
        at = self.trains_on(key)
        if at is None:
            raise ValueError(f"{key} has no rows to train in")
        return at

    def _stored(self, tensors: Tensors) -> PinnedHost | OnDisk:
        """Host memory within the budget, else a file; memory again where the disk is full."""
        if tensors.bytes > self._host_bytes_left:
            file = self._written(tensors)
            if file is not None:
                return file
        self._host_bytes_left -= tensors.bytes
        return PinnedHost(tensors)

    def _written(self, tensors: Tensors) -> OnDisk | None:
        """A file of these tensors; None where the disk is full even after evicting the cache."""
        name = f"parked-{uuid4().hex}"  # not by content: equal jobs must not share one file
        for last in (False, True):
            try:
                return OnDisk(self._files.keep(lambda path: save(path, JobProgress(), tensors), name).path, name)
            except DiskFull as error:
                if last or self._cache is None or not self._cache.evict(0):
                    log.warning("a parked job stays in memory, beyond MOTET_WORKER_PARK_BYTES: %s", error)
                    return None
        return None

    def _drop(self, at: Location) -> None:
        """Give back the memory or the file that a job's adapter has left."""
        match at:
            case PinnedHost(tensors):
                self._host_bytes_left += tensors.bytes
            case OnDisk(_, name):
                self._files.drop(name)


def _source(at: Location) -> Source:
    match at:
        case PinnedHost(tensors):
            return tensors
        case OnDisk(path):
            return path
        case _:
            return None
