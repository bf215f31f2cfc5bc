"""Debounces plans: immediate after a change of what runs, soon where an arrival may start, delayed where arrivals would only
lengthen the queue.

A burst of submissions then costs a bounded share of a core, also where each of them starts. Values only: knows no rows, and no
clock except the one it is given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_SECONDS = 0.25  # the pause after one plan that moved nothing; doubles with each further one,
_MOST_SECONDS = 3.0  # up to this
_ROOM_SHARE = 2  # the pause before arrivals that may start, in durations of the last plan, which more of them then share
_SHARE = 8  # another pause is at least this many times the last plan's duration, within that bound


@dataclass(frozen=True)
class PlanCauses:
    """Why plans are requested. `changed`: not only by arrivals; `room`: an arrival may fit on free devices."""

    changed: bool
    room: bool


class Pace:
    """The pace of one process's planning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._ended = clock() - 2 * _MOST_SECONDS
        self._idle = 0  # plans in a row that moved nothing

    def begin(self) -> None:
        """A plan begins."""
        now = self._clock()
        if now - self._ended > 2 * _MOST_SECONDS:
            self._idle = 0  # the burst ended long ago
        self._began = now

    def end(self, moved: bool) -> None:
        """The plan is written. `moved`: it started or reclaimed something."""
        self._ended = self._clock()
        self._idle = 0 if moved else self._idle + 1

    def wait(self, causes: PlanCauses) -> float:
        """Seconds until a plan for this request is due; 0 if it is due now."""
        if causes.changed:
            return 0.0
        took = self._ended - self._began
        room = causes.room or not self._idle
        pause = _ROOM_SHARE * took if room else max(_SHARE * took, _FIRST_SECONDS * 2 ** (self._idle - 1))
        return max(0.0, self._ended + min(pause, _MOST_SECONDS) - self._clock())
