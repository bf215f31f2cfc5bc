"""Debounces plans: immediate where a plan can change what runs, delayed where arrivals would only lengthen the queue.

A burst of submissions to a full fleet then costs a bounded share of a core. Values only: knows no rows, and no clock except the
one it is given.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_FIRST_SECONDS = 0.25  # the pause after one plan that moved nothing; doubles with each further one,
_MOST_SECONDS = 3.0  # up to this
_SHARE = 8  # a pause is at least this many times the last plan's duration, within that bound


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
        if causes.changed or not self._idle:
            return 0.0
        took = self._ended - self._began
        pause = took if causes.room else max(_SHARE * took, _FIRST_SECONDS * 2 ** (self._idle - 1))
        return max(0.0, self._ended + min(pause, _MOST_SECONDS) - self._clock())
