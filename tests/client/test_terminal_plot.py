"""Curves as characters."""

import math

from hypothesis import given
from hypothesis import strategies as st
from motet.display.terminal_plot import Frame, braille, sparkline

LOSSES = st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=80)


def test_a_falling_loss_falls() -> None:
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"


def test_a_sparkline_squeezes_by_means_and_leaves_gaps() -> None:
    assert sparkline([1, 3, None, math.nan, 8, 8], 3) == "▁ █"
    assert sparkline([None, math.inf], 8) == ""
    assert sparkline([], 8) == ""
    assert sparkline([2.0, 2.0], 8) == "▁▁"


@given(LOSSES, st.integers(1, 40))
def test_a_sparkline_never_outgrows_its_place(values: list[float | None], width: int) -> None:
    assert len(sparkline(values, width)) <= width


def test_a_line_joins_its_points() -> None:
    (top, bottom) = braille([[(0, 1), (3, 0)]], Frame(0, 3, 0, 1), 2, 2)
    dots = sum((ord(cell.character) - 0x2800).bit_count() for cell in top + bottom)
    assert dots == 8, "one dot in each of the eight rows"


def test_later_series_lie_on_top_and_a_gap_is_not_bridged() -> None:
    flat = [(0.0, 0.0), (9.0, 0.0)]
    (row,) = braille([flat, flat], Frame(0, 9, 0, 1), 5, 1)
    assert {cell.series for cell in row} == {1}
    (row,) = braille([[(0.0, 0.0), (4.0, math.nan), (9.0, 0.0)]], Frame(0, 9, 0, 1), 5, 1)
    assert [cell.series for cell in row] == [0, None, None, None, 0]


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(width=32)), max_size=30), st.integers(1, 30), st.integers(1, 8))
def test_a_plot_keeps_its_size(points: list[tuple[int, float]], width: int, height: int) -> None:
    picture = braille([sorted(points, key=lambda point: point[0])], Frame(0, 50, -1.0, 1.0), width, height)
    assert [len(row) for row in picture] == [width] * height
