"""Usage by day as bars, in SVG coordinates. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

WIDTH, HEIGHT = 900.0, 120.0


@dataclass(frozen=True)
class DayBar:
    day: date
    x: float
    y: float
    width: float
    height: float
    tokens: int
    gpu_seconds: float


def day_bars(start: datetime, end: datetime, used: Iterable[tuple[date, int, float]]) -> list[DayBar]:
    """A bar for each day from `start` to `end`: its tokens and GPU seconds, summed; the height is of GPU seconds."""
    days: dict[date, tuple[int, float]] = {}
    for day, tokens, seconds in used:
        before = days.get(day, (0, 0.0))
        days[day] = (before[0] + tokens, before[1] + seconds)
    count, most = (end - start).days, max((seconds for _, seconds in days.values()), default=0.0) or 1.0
    wide, found = WIDTH / count, []
    for at in range(count):
        day = (start + timedelta(days=at)).date()
        tokens, seconds = days.get(day, (0, 0.0))
        height = round(HEIGHT * seconds / most, 1)
        found.append(DayBar(day, round(at * wide + 1, 1), HEIGHT - height, round(wide - 2, 1), height, tokens, seconds))
    return found
