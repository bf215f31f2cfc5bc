"""A share of a whole number is rounded up, but not by what a float adds to it."""

import pytest

from contract.values.shares import share_of


@pytest.mark.parametrize(
    ("share", "whole", "found"),
    [(0.07, 100, 7), (1.5 * 0.2, 10, 3), (0.7, 10, 7), (0.1, 15, 2), (0.071, 100, 8), (0, 9, 0), (1, 9, 9), (1e-3, 1, 1)],
)
def test_a_part_of_one_counts_as_one_and_the_noise_of_a_float_as_none(share, whole, found):
    assert share_of(share, whole) == found
