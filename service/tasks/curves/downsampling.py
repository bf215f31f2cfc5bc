"""Downsamples curves to buckets of steps, each with the mean, minimum and maximum loss. Pure.

Bucket n of width w holds the steps from n * w to (n + 1) * w - 1, whatever the curve's length: buckets do not move while the
curve grows, and wider buckets are merged from narrower ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from service.tasks.models import CurveSummary

BUCKETS = 512  # at most, of a stored summary


@dataclass
class CurveBucket:
    """The bucket's first step is `number` times the width. Mean, minimum and maximum leave out losses that are not finite."""

    number: int
    count: int = 0
    mean: float = 0.0
    least: float = math.inf
    greatest: float = -math.inf

    def add(self, count: int, mean: float, least: float, greatest: float) -> None:
        """Merge the `count` losses of a part of the bucket."""
        if count:
            self.count += count
            self.mean += (mean - self.mean) * count / self.count
            self.least, self.greatest = min(self.least, least), max(self.greatest, greatest)


@dataclass
class Buckets:
    """One series in buckets of `width` steps; callers add points in ascending order."""

    width: int
    made: list[CurveBucket] = field(default_factory=list)

    def at(self, step: int) -> CurveBucket:
        number = step // self.width
        if not self.made or self.made[-1].number != number:
            self.made.append(CurveBucket(number))
        return self.made[-1]

    def points(self, steps: Iterable[int], values: Iterable[float]) -> None:
        for step, value in zip(steps, values, strict=True):
            self.at(step).add(int(math.isfinite(value)), value, value, value)


def merged(stored: CurveSummary, width: int) -> list[CurveBucket]:
    """A stored summary in wider buckets; its own width must divide `width`."""
    counts, means, least, greatest = (np.array(values) for values in (stored.counts, stored.means, stored.mins, stored.maxs))
    numbers = np.array(stored.buckets) * stored.width // width
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    many = np.add.reduceat(counts, starts)
    mean = np.add.reduceat(np.where(counts > 0, counts * means, 0.0), starts) / np.maximum(many, 1)
    least = np.minimum.reduceat(np.where(counts > 0, least, np.inf), starts)
    greatest = np.maximum.reduceat(np.where(counts > 0, greatest, -np.inf), starts)
    columns = (column.tolist() for column in (numbers[starts], many, mean, least, greatest))
    return [CurveBucket(*row) for row in zip(*columns, strict=True)]


def width_for(steps: int, buckets: int) -> int:
    """The least power of two of which `buckets` buckets cover `steps` steps; powers of two divide one another."""
    return 1 << max(0, math.ceil(steps / buckets) - 1).bit_length()


def summary_of(job_id: str, series: str, curve: Buckets) -> CurveSummary:
    """The row that `merged` reads."""
    return CurveSummary(
        job_id=job_id,
        series=series,
        width=curve.width,
        buckets=[bucket.number for bucket in curve.made],
        counts=[bucket.count for bucket in curve.made],
        means=[bucket.mean for bucket in curve.made],
        mins=[bucket.least for bucket in curve.made],
        maxs=[bucket.greatest for bucket in curve.made],
    )
