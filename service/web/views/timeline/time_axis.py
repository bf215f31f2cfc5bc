"""The time axis of the cluster's timeline, in SVG coordinates: linear, with breaks where for long nothing starts or ends."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.web.views.formats import duration

_ROOM = 36.0  # right of the last moment, for the words of its tick
_BREAK, _TEAR, _TOOTH = 70.0, 14.0, 6.0  # widths of a break, of the tear in its middle, and of the tear's teeth
_MOST_BREAKS = 6  # more would leave less than half of the width to what happens
_UNCUT = 9 * 3600  # seconds: the hour before now takes a tenth of the width beside it
_TENFOLD = 9  # a longer span of time is cut where it would leave less than a tenth of the width to all that is shorter
_APART, _STEP_APART = 64.0, 90.0  # between the middles of two ticks' words
_STEPS = (300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)  # seconds between ticks


@dataclass(frozen=True)
class Tick:
    x: float
    words: str


@dataclass(frozen=True)
class Break:
    """A span of time in which nothing starts or ends, drawn in fixed width; `x` is its tear's middle."""

    x: float
    words: str

    def tear(self, top: float, bottom: float) -> str:
        """The tear's outline, as a path's `d`."""
        teeth = range(int((bottom - top) // _TOOTH) + 1)
        left = [(self.x - _TEAR / 2 + _TOOTH / 2 * (at % 2), top + _TOOTH * at) for at in teeth]
        right = [(x + _TEAR, y) for x, y in reversed(left)]
        return "M" + "L".join(f"{x:g} {y:g}" for x, y in left + right) + "Z"


class TimeAxis:
    """Places moments from `begin` to `end` between `left` and `right`. `moments` are when anything drawn starts or ends."""

    def __init__(
        self, left: float, right: float, now: datetime, begin: datetime, end: datetime, moments: Iterable[datetime]
    ) -> None:
        self._now, self._right, self.end = now, right, end
        self._moments = sorted({begin, now, end, *(one for one in moments if begin < one < end)})
        spans = [(after - before).total_seconds() for before, after in zip(self._moments, self._moments[1:], strict=False)]
        self._cut = _longest(spans)
        shown = sum(span for at, span in enumerate(spans) if at not in self._cut)
        self._scale = (right - _ROOM - left - _BREAK * len(self._cut)) / shown  # a second's width
        self._x = [left]
        for at, span in enumerate(spans):
            self._x.append(self._x[-1] + (_BREAK if at in self._cut else span * self._scale))
        self.breaks = [Break(round(self._x[at] + _BREAK / 2, 1), _not_drawn(spans[at])) for at in sorted(self._cut)]

    def x(self, moment: datetime) -> float:
        """Where a moment is; one outside of the axis is at its begin or end."""
        moment = min(max(moment, self._moments[0]), self.end)
        at = min(bisect_right(self._moments, moment), len(self._moments) - 1) - 1
        before, after = self._moments[at : at + 2]
        return round(self._x[at] + (self._x[at + 1] - self._x[at]) * ((moment - before) / (after - before)), 1)

    def ticks(self) -> list[Tick]:
        """Whole steps from now, where there is no break, and the first moment behind each break."""
        placed = [self._tick(self._now)]
        torn = [(self._moments[at], self._moments[at + 1]) for at in sorted(self._cut)]
        for _, behind in torn:
            self._place(behind, placed)
        step = next((one for one in _STEPS if one * self._scale >= _STEP_APART), 172800)
        at = -int((self._now - self._moments[0]).total_seconds() // step)
        while (moment := self._now + timedelta(seconds=at * step)) <= self.end:
            if not any(before < moment < behind for before, behind in torn):
                self._place(moment, placed)
            at += 1
        return sorted(placed, key=lambda tick: tick.x)

    def _place(self, moment: datetime, placed: list[Tick]) -> None:
        """Add its tick, where its words touch neither others nor the edge."""
        tick = self._tick(moment)
        if tick.x < self._right - 30 and all(abs(tick.x - one.x) >= _APART for one in placed):
            placed.append(tick)

    def _tick(self, moment: datetime) -> Tick:
        seconds = (moment - self._now).total_seconds()
        words = "now" if seconds == 0 else f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"
        return Tick(self.x(moment), words)


def _longest(spans: Sequence[float]) -> set[int]:
    """Those to cut: the most, of at most `_MOST_BREAKS`, each of which is far longer than all that are left together."""
    longest = sorted((at for at, span in enumerate(spans) if span > _UNCUT), key=lambda at: -spans[at])
    for count in range(min(_MOST_BREAKS, len(longest)), 0, -1):
        cut = longest[:count]
        if spans[cut[-1]] > _TENFOLD * (sum(spans) - sum(spans[at] for at in cut)):
            return set(cut)
    return set()


def _not_drawn(seconds: float) -> str:
    return f"{duration(seconds)} in which nothing starts or ends"
