"""A full disk as one exception of our own, so that writers can wait for room. Decides nothing, and knows no file format."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Exception):
    """There is no room to write; nothing partial stays on disk. A retry may find room."""


@contextmanager
def room_needed(folder: Path) -> Iterator[None]:
    """Raise DiskFull where the body finds no room in `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(f"the disk of {folder} is full; make room there, and the work goes on by itself") from error
