"""Host copies of adapters' weights: in main memory within a budget, in files beyond. Knows no jobs.

A thread writes the files beside the loop; until its file is written a copy is read from memory.
"""

import logging
import resource
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

from worker.adapters.job_checkpoint import UnreadableWeights
from worker.model.tensor_file_reader import read_into

log = logging.getLogger(__name__)

# one descriptor in so many may be a file's of these copies: an executor has two kinds, and opens other files too
_SHARE = 3
_WAITING = 8  # copies that wait for their files take one part in so many of the budget besides, or are one alone


@dataclass(frozen=True)
class WeightsCopy:
    """read: waits for the copy, float32 [rank, W]; raises UnreadableWeights. let_go: gives up its memory or file, for others to
    use; while another thread reads it, once that is through."""

    read: Callable[[], Tensor]
    let_go: Callable[[], None]


@dataclass(frozen=True)
class _WeightsFile:
    io: FileIO
    shape: torch.Size

    def read(self) -> Tensor:
        found = torch.empty(self.shape)
        try:
            read_into(self.io.fileno(), found, 0)
        except (OSError, ValueError) as error:
            raise UnreadableWeights(f"a file of weights in MOTET_WORKER_DIR cannot be read back: {error}") from None
        return found


@dataclass(eq=False)
class _Kept:
    """at: in memory, which a call waits for, or in its file once that is written. readers: threads that read it now. gone: let
    go while it was written or read, which gives it back in the end."""

    at: Callable[[], Tensor] | _WeightsFile
    size: int
    readers: int = 0
    gone: bool = False

    def read(self) -> Tensor:
        at = self.at
        return at.read() if isinstance(at, _WeightsFile) else at()


class WeightsCopies:
    """Copies of one kind. One thread keeps them; another writes files; any reads a copy, and one lets it go."""

    def __init__(self, kind: str, most_bytes: float, folder: Path) -> None:
        """kind: what is copied, a plural for sentences. most_bytes: of main memory. folder: for files, which have no names
        there: a killed process leaves none behind."""
        self._kind, self._bytes_left, self._folder = kind, most_bytes, folder
        self._files_left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE
        self._told: str | None = None  # what was said last, which is not said with every copy
        self._changed = threading.Condition()  # guards the numbers above and all below
        self._waiting: deque[_Kept] = deque()  # for their files; the first is being written
        self._waiting_bytes, self._most_waiting = 0, most_bytes / _WAITING

    def keep(self, copied: Callable[[], Tensor], size: int) -> WeightsCopy:
        """Keep a copy of `size` bytes, which may be under way until `copied` returns it. Where copies come faster than the disk
        takes them this waits, until fewer wait for their files. Where no file can be written it stays in memory."""
        one = _Kept(copied, size)
        with self._changed:
            if size <= self._bytes_left or self._lacks_files():
                self._bytes_left -= size
            else:
                self._changed.wait_for(lambda: not self._waiting or self._waiting_bytes + size <= self._most_waiting)
                self._files_left -= 1
                self._waiting_bytes += size
                self._waiting.append(one)
                if len(self._waiting) == 1:
                    self._start_writing()
        return WeightsCopy(partial(self._read, one), partial(self._let_go, one))

    def _lacks_files(self) -> bool:
        if not self._files_left:
            self._stays("a third of the descriptors that `ulimit -Hn` allows is taken")
        return not self._files_left

    def _start_writing(self) -> None:
        try:
            threading.Thread(target=self._write_all, name=self._kind, daemon=True).start()
        except RuntimeError as error:
            self._tell(logging.WARNING, f"all tasks wait while {self._kind} are written to files: {error}")
            self._write_all()

    def _write_all(self) -> None:
        """What waits, until nothing does."""
        writes = True
        while writes:
            one = self._waiting[0]
            file = self._written(one.read())
            with self._changed:
                if file is None:  # it stays in memory
                    self._bytes_left -= one.size
                    self._files_left += 1
                else:
                    one.at = file
                self._forget(one)
                self._give_back_unused(one)
                writes = bool(self._waiting)

    def _read(self, one: _Kept) -> Tensor:
        with self._changed:
            one.readers += 1
        try:
            return one.read()
        finally:
            with self._changed:
                one.readers -= 1
                self._give_back_unused(one)

    def _let_go(self, one: _Kept) -> None:
        if not isinstance(at := one.at, _WeightsFile):  # which the thread that writes may change from now on
            at()  # is through before another copy takes its memory
        with self._changed:
            if one in self._waiting and one is not self._waiting[0]:
                self._files_left += 1
                self._forget(one)
            else:
                one.gone = True
                self._give_back_unused(one)

    def _forget(self, one: _Kept) -> None:
        """It waits no more."""
        self._waiting.remove(one)
        self._waiting_bytes -= one.size
        self._changed.notify_all()

    def _give_back_unused(self, one: _Kept) -> None:
        """Where it was let go, and nobody reads or writes it any more."""
        if not one.gone or one.readers or one in self._waiting:
            return
        one.gone = False  # it is given back once
        if isinstance(one.at, _WeightsFile):
            one.at.io.close()
            self._files_left += 1
        else:
            self._bytes_left += one.size

    def _written(self, weights: Tensor) -> _WeightsFile | None:
        io: FileIO | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a rank's host may have none yet
            io = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115  (open as long as the copy is kept)
            left = weights.numpy().data.cast("B")
            while left:
                left = left[io.write(left) :]
        except OSError as error:
            if io is not None:
                io.close()
            self._stays(str(error))
            return None
        self._tell(logging.INFO, f"{self._kind} exceed their part of MOTET_WORKER_PARK_BYTES, and some lie in files")
        return _WeightsFile(io, weights.shape)

    def _stays(self, why: str) -> None:
        self._tell(logging.WARNING, f"{self._kind} stay in memory, beyond their part of MOTET_WORKER_PARK_BYTES: {why}")

    def _tell(self, level: int, sentence: str) -> None:
        if sentence != self._told:
            log.log(level, "%s", sentence)
        self._told = sentence


def itself(weights: Tensor) -> Tensor:
    """For `keep`, of a copy that is not under way."""
    return weights
