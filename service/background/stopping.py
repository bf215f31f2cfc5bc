"""Stops a program's background threads together: all are asked to end before any is waited for, so the limit is one for all."""

import time
from collections.abc import Sequence
from typing import Protocol

_SECONDS = 5.0


class BackgroundWork(Protocol):
    def stop(self) -> None:
        """Ask it to end; returns at once."""

    def close(self, seconds: float) -> None:
        """Wait for its end, at most so many seconds; give back what it has not done by then."""


def stop_all(works: Sequence[BackgroundWork], seconds: float = _SECONDS) -> None:
    """Returns after about so many seconds at most, and the time that the database takes for what is given back."""
    for work in works:
        work.stop()
    until = time.monotonic() + seconds
    for work in works:
        work.close(max(0.0, until - time.monotonic()))
