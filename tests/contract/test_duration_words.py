"""Durations in words: one rule for the command line and the dashboard."""

import math

import pytest

from contract.wording.duration_words import duration


def test_a_time_without_an_end_is_not_known():
    assert duration(math.inf) == duration(math.nan) == "a time that is not known"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (-3, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (95.05, "1 min 35 s"),
        (599.4, "9 min 59 s"),
        (599.6, "10 min"),
        (12.6 * 60, "13 min"),
        (44.5 * 60, "45 min"),
        (3599, "1 h"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (9 * 3600 + 3599, "10 h"),
        (23.4 * 3600, "23 h"),
        (23.6 * 3600, "1 d"),
        (52 * 3600, "2 d 4 h"),
        (9.99 * 86400, "10 d"),
        (12.4 * 86400, "12 d"),
    ],
)
def test_a_duration_is_rounded_to_the_last_unit_that_is_said(seconds: float, words: str) -> None:
    assert duration(seconds) == words
