"""How soon one plan may follow another: at once where it can change what runs, and after a pause where arrivals only queue up.

A burst of submissions before a full fleet then costs a bounded share of a core. Values in, values out: knows no rows, and no
clock but the one it is given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_SECONDS = 0.25  # the pause after one plan that moved nothing; it doubles with each further one,
_MOST_SECONDS = 3.0  # up to this
_SHARE = 8  # no pause is shorter than so many times the plan before it, but for that bound


@dataclass(frozen=True)
class Asked:
    """Why plans are asked for. `changed`: not by arrivals alone; `room`: an arrival may fit on devices that stand free."""

    changed: bool
    room: bool


class Pace:
    """The pace of one process's planning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._ended = clock() - 2 * _MOST_SECONDS
        self._idle = 0  # plans in a row that moved nothing

    def begin(self) -> None:
        """A plan is being made."""
        now = self._clock()
        if now - self._ended > 2 * _MOST_SECONDS:
            self._idle = 0  # the burst was over long ago
        self._began = now

    def end(self, moved: bool) -> None:
        """The plan has been written. `moved`: it started something, or took something back."""
        self._ended = self._clock()
        self._idle = 0 if moved else self._idle + 1

    def wait(self, asked: Asked) -> float:
        """Seconds until a plan for this is due; 0 if it is due now."""
        if asked.changed or not self._idle:
            return 0.0
        took = self._ended - self._began
        pause = took if asked.room else max(_SHARE * took, _FIRST_SECONDS * 2 ** (self._idle - 1))
        return max(0.0, self._ended + min(pause, _MOST_SECONDS) - self._clock())
