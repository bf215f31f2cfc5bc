"""Steps in words: those that an adapter's weights are of, and where a job goes on after its placement ended."""

from collections.abc import Sequence


def listed(named: Sequence[int | str]) -> str:
    """`5, 6 and 8`: steps, or names."""
    *first, last = map(str, named)
    return f"{', '.join(first)} and {last}" if first else last


def mean_of_steps(steps: Sequence[int]) -> str:
    """`mean of steps 5, 6 and 8`; empty where there are none."""
    return f"mean of steps {listed(steps)}" if steps else ""


def goes_on_from(step: int) -> str:
    """Of a rewind's step, the last that still counts: -1 where no checkpoint was stored."""
    return f"goes on from its checkpoint at step {step}" if step >= 0 else "has no checkpoint and starts at step 0"
