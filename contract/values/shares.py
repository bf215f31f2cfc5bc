"""Shares of a whole number, such as of a job's steps or of a search's jobs, as whole numbers. Pure."""

import math


def share_of(share: float, whole: int) -> int:
    """The share of `whole`, rounded up. 0.07 of 100 is 7, though 0.07 * 100 is a little more as a float."""
    return math.ceil(round(share * whole, 6))
