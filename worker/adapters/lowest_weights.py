"""Host copies of adapters' weights at their lowest losses: in main memory within a budget, in files beyond. Knows no jobs."""

import logging
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)

_SHARE = 2  # one descriptor in so many may be such a file's: a process that has none left opens nothing else either


@dataclass(frozen=True)
class WeightsCopy:
    """read: waits for the copy, float32 [rank, W]. let_go: gives up its memory or file, for others to use."""

    read: Callable[[], Tensor]
    let_go: Callable[[], None]


class LowestWeights:
    """The copies of one replica's adapters."""

    def __init__(self, most_bytes: float, folder: Path) -> None:
        """most_bytes: of main memory. folder: for files, which have no names there: a killed process leaves none behind."""
        self._bytes_left, self._folder = most_bytes, folder
        self._files_left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE
        self._told: str | None = None  # what was said last, which is not said with every copy

    def keep(self, copied: Callable[[], Tensor], size: int) -> WeightsCopy:
        """Keep a copy of `size` bytes, which may be under way until `copied` returns it. One that goes to a file is waited for.
        Where no file can be written it stays in memory."""
        if size > self._bytes_left and (file := self._written(copied())) is not None:
            return WeightsCopy(partial(_read, file, copied().shape), partial(self._close, file))
        self._bytes_left -= size

        def let_go() -> None:
            copied()  # is through before another copy takes its memory
            self._bytes_left += size

        return WeightsCopy(copied, let_go)

    def _written(self, weights: Tensor) -> FileIO | None:
        if not self._files_left:
            self._stays("half of the descriptors that `ulimit -Hn` allows are taken")
            return None
        file: FileIO | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a rank's host may have none yet
            file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115  (open as long as the copy is kept)
            left = weights.numpy().data.cast("B")
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            if file is not None:
                file.close()
            self._stays(str(error))
            return None
        self._files_left -= 1
        self._tell(
            logging.INFO, "weights at the lowest losses exceed MOTET_WORKER_PARK_BYTES; some lie in files, which takes longer"
        )
        return file

    def _close(self, file: FileIO) -> None:
        file.close()
        self._files_left += 1

    def _stays(self, why: str) -> None:
        self._tell(logging.WARNING, f"weights at the lowest losses stay in memory, beyond MOTET_WORKER_PARK_BYTES: {why}")

    def _tell(self, level: int, sentence: str) -> None:
        if sentence != self._told:
            log.log(level, "%s", sentence)
        self._told = sentence


def _read(file: FileIO, shape: torch.Size) -> Tensor:
    found = torch.empty(shape)
    left = found.numpy().data.cast("B")
    file.seek(0)
    while left:
        read = file.readinto(left)
        if not read:
            raise EOFError(f"a file of weights ends {len(left)} bytes early")
        left = left[read:]
    return found
