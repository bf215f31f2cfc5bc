"""A full disk as one error of ours, so that who writes can wait for room. Decides nothing, and knows no format of a file."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(Exception):
    """There is no room to write; nothing of what was to be written stays. Another try may find room."""


@contextmanager
def room_needed(folder: Path) -> Iterator[None]:
    """Raise DiskFull where what is done within finds no room in `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(f"the disk of {folder} is full; make room there, and the work goes on by itself") from error
