"""A small file system that a test fills up."""

import contextlib
from pathlib import Path


class SmallDisk:
    """`fill` leaves no byte, `free` gives back all that it took."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / "filler"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            for size in (2**16, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        self._filler.unlink()
