"""Progress notes: the progress of a claimed row's work, noted in its table at most once a second. Knows no tables.

A note renews the row's claim, so there is one before each pause as well, or a silent source would outlast the claim.
"""

import time
from collections.abc import Callable

_NOTE_SECONDS = 1.0  # between two notes


class ProgressNotes:
    """`pause` is the courier's, which raises Stopped; `renew` notes the progress and renews the claim, or raises Lost. Each
    method raises what these do."""

    def __init__(self, pause: Callable[[float], None], renew: Callable[[], None]) -> None:
        self._pause, self._renew, self._noted = pause, renew, time.monotonic()

    def moved(self) -> None:
        """There is progress: a note, if the last one is old enough."""
        self._pause(0.0)
        if time.monotonic() - self._noted >= _NOTE_SECONDS:
            self.note()

    def note(self) -> None:
        """A note now."""
        self._pause(0.0)
        self._renew()
        self._noted = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep in the midst of the work."""
        self.note()
        self._pause(seconds)
