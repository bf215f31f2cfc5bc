"""The cluster's time axis is linear, but for breaks where nothing starts or ends for far longer than all else takes."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from service.web.views.timeline.time_axis import TimeAxis

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEFT, RIGHT = 150.0, 1000.0
MINUTE, HOUR, DAY = 60, 3600, 86400


def axis(*seconds: float) -> TimeAxis:
    """From an hour ago, of what starts or ends so many seconds from now."""
    moments = [NOW + timedelta(seconds=one) for one in seconds]
    return TimeAxis(LEFT, RIGHT, NOW, NOW - timedelta(hours=1), max(moments), moments)


def at(made: TimeAxis, seconds: float) -> float:
    return made.x(NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("moments", "breaks"),
    [
        ([20 * MINUTE], []),
        ([8 * HOUR], []),
        ([20 * MINUTE, 3 * DAY], ["3 d"]),
        ([3 * DAY], ["3 d"]),
        ([2 * DAY, 2 * DAY + MINUTE, 4 * DAY, 4 * DAY + HOUR], ["2 d", "2 d"]),
        ([-HOUR / 2, HOUR, 2 * DAY, 2 * DAY + 20 * HOUR], ["1 d 23 h", "20 h"]),
        ([n * 12 * HOUR for n in range(1, 15)], []),  # a full plan: cut everywhere it would show nothing
        ([n * DAY + n * MINUTE for n in range(1, 7)], ["1 d"] * 6),
    ],
)
def test_it_breaks_where_a_span_dwarfs_all_that_is_shorter(moments, breaks):
    made = axis(*moments)
    assert [one.words.removesuffix(" in which nothing starts or ends") for one in made.breaks] == breaks
    places = [at(made, one) for one in (-HOUR, 0, *sorted(one for one in moments if one > 0))]
    assert places[0] == LEFT
    assert places[-1] < RIGHT
    assert all(before < after for before, after in pairwise(places)), "what is later stands farther right"
    if breaks or max(moments) <= 8 * HOUR:
        assert at(made, 0) - LEFT >= 0.05 * (RIGHT - LEFT), "the hour before now can be read"
    ticks = made.ticks()
    assert "now" in [tick.words for tick in ticks]
    assert all(after.x - before.x >= 64 for before, after in pairwise(ticks)), "words of ticks overlap"
    assert all(abs(tick.x - torn.x) > 14 for tick in ticks for torn in made.breaks), "a tick lies in a tear"


def test_ticks_stand_at_their_times_and_apart():
    draw, torn = random.Random(7), 0
    for _ in range(2000):
        ends = [draw.choice((MINUTE, HOUR, DAY)) * draw.uniform(0.1, 30) for _ in range(draw.randint(1, 5))]
        made = axis(*ends)
        ticks = made.ticks()
        torn += bool(made.breaks)
        assert [tick.x for tick in ticks if tick.words == "now"] == [at(made, 0)]
        assert all(after.x - before.x >= 64 for before, after in pairwise(ticks)), f"words of ticks overlap: {ends}"
        assert all(abs(tick.x - one.x) >= 34.9 for tick in ticks for one in made.breaks), f"a tick lies in a break: {ends}"
    assert torn > 300


def test_outside_of_breaks_equal_times_have_equal_widths():
    made = axis(HOUR, 3 * DAY, 3 * DAY + HOUR)
    hour = at(made, 0) - at(made, -HOUR)
    assert at(made, HOUR) - at(made, 0) == pytest.approx(hour, abs=0.2)
    assert at(made, 3 * DAY + HOUR) - at(made, 3 * DAY) == pytest.approx(hour, abs=0.2)
    assert at(made, 3 * DAY) - at(made, HOUR) < hour / 2
    assert "in 3 d" in [tick.words for tick in made.ticks()], "the first moment behind a break has its time"


def test_moments_beyond_its_ends_are_placed_at_them():
    made = axis(HOUR)
    assert at(made, -DAY) == at(made, -HOUR) == LEFT
    assert at(made, DAY) == at(made, HOUR)
