"""The steps that an adapter's weights are of, in words."""

from collections.abc import Sequence


def listed(steps: Sequence[int]) -> str:
    """`5, 6 and 8`."""
    *first, last = map(str, steps)
    return f"{', '.join(first)} and {last}" if first else last


def mean_of_steps(steps: Sequence[int]) -> str:
    """`mean of steps 5, 6 and 8`; empty where there are none."""
    return f"mean of steps {listed(steps)}" if steps else ""
