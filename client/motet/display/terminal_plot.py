"""Curves as characters: sparklines of eight heights, and plots of braille dots, two by four per character.

Numbers in, strings out. Knows no colours, no terminal, no training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_HEIGHTS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [row][column] of a braille cell
_BLANK = 0x2800

Point = tuple[float, float]


def sparkline(values: Sequence[float | None], width: int) -> str:
    """`values` resampled to at most `width` characters; each is the mean of its share. Non-finite values are gaps."""
    known = [value if value is not None and math.isfinite(value) else None for value in values]
    columns = min(width, len(known))
    means = [_mean(known[at * len(known) // columns : (at + 1) * len(known) // columns]) for at in range(columns)]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(" " if mean is None else _HEIGHTS[_level(mean, low, span, len(_HEIGHTS))] for mean in means)


@dataclass(frozen=True)
class Frame:
    """The visible region of a plot: x from `left` to `right`, y from `low` to `high`; points outside are omitted."""

    left: float
    right: float
    low: float
    high: float


@dataclass(frozen=True)
class Cell:
    """One character of a plot and the index of its series; None where it is blank."""

    character: str
    series: int | None


def braille(series: Sequence[Sequence[Point]], frame: Frame, width: int, height: int) -> list[list[Cell]]:
    """`height` rows of `width` cells, top row first. Points of a series are joined; later series are drawn on top."""
    bits = [[0] * width for _ in range(height)]
    owner: list[list[int | None]] = [[None] * width for _ in range(height)]
    for number, points in enumerate(series):
        for x, y in _dots(points, frame, 2 * width, 4 * height):
            bits[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
            owner[y // 4][x // 2] = number
    return [[Cell(chr(_BLANK + bits[row][at]), owner[row][at]) for at in range(width)] for row in range(height)]


def _dots(points: Sequence[Point], frame: Frame, columns: int, rows: int) -> list[tuple[int, int]]:
    """The dots (column, row from the top) of one series' line."""
    placed: list[tuple[int, int]] = []
    before: tuple[int, int] | None = None
    for x, y in points:
        if not (math.isfinite(y) and frame.left <= x <= frame.right and frame.low <= y <= frame.high):
            before = None
            continue
        at = (
            _level(x, frame.left, frame.right - frame.left, columns),
            rows - 1 - _level(y, frame.low, frame.high - frame.low, rows),
        )
        placed += [at] if before is None else _line(before, at)
        before = at
    return placed


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for step in range(steps + 1)
    ]


def _level(value: float, low: float, span: float, levels: int) -> int:
    return min(levels - 1, int((value - low) / span * levels)) if span > 0 else 0


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if finite else None
