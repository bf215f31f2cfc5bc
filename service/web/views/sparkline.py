"""A small line for a table's cell, in SVG coordinates."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 72.0, 18.0
_POINTS = 36


@dataclass(frozen=True)
class Sparkline:
    """`points` of an SVG polyline in a box of WIDTH by HEIGHT, and the end's place."""

    points: str
    x: float
    y: float


def sparkline(values: Sequence[float]) -> Sparkline | None:
    """The values' course; None for fewer than two. Many values are thinned, the last one stays."""
    if len(values) < 2:
        return None
    stride = -(-len(values) // _POINTS)
    shown = [*values[:-1:stride], values[-1]]
    least, greatest = min(shown), max(shown)
    span = (greatest - least) or 1.0
    places = [
        (round(2 + at * (WIDTH - 4) / (len(shown) - 1), 1), round(2 + (HEIGHT - 4) * (greatest - value) / span, 1))
        for at, value in enumerate(shown)
    ]
    return Sparkline(" ".join(f"{x:g},{y:g}" for x, y in places), *places[-1])
