"""Paired statistics of row scores against textbook formulas and a simulation."""

import math
import random
from statistics import fmean, stdev

import pytest

from contract.row_scores import RowScores, ratio_estimate, t_quantile


def test_without_weights_it_is_the_mean_and_its_standard_error():
    values = [1.0, 2.5, 0.5, 4.0, 2.0]
    found = ratio_estimate(values, [])
    assert found.mean == pytest.approx(fmean(values))
    assert found.standard_error == pytest.approx(stdev(values) / math.sqrt(5))
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(fmean(values))
    assert high - fmean(values) == pytest.approx(2.776 * found.standard_error, rel=1e-3)


def test_weights_are_tokens_not_rows():
    """Two rows of 1 and 9 tokens: the mean is per token; and rows that all have the same loss per token have no spread."""
    assert ratio_estimate([2.0, 9.0], [1, 9]).mean == pytest.approx(1.1)
    assert ratio_estimate([2.0, 18.0, 6.0], [1, 9, 3]).standard_error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("freedom", "known"), [(3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (100, 1.984), (10_000, 1.960)]
)
def test_students_t(freedom, known):
    assert t_quantile(freedom) == pytest.approx(known, rel=0.002)


@pytest.mark.parametrize(
    ("freedom", "jobs", "known"),
    [
        (1, 1, 12.7062),
        (2, 1, 4.30265),
        (1, 4, 50.9235),
        (1, 60, 763.943),
        (2, 60, 34.6194),
        (3, 60, 13.7450),
        (5, 1024, 12.9557),
        (7, 1024, 8.8147),
        (8, 1024, 7.8766),
        (11, 1024, 6.4288),
    ],
)
def test_students_t_of_few_rows_and_many_jobs(freedom, jobs, known):
    assert t_quantile(freedom, 1 - 0.05 / jobs) == pytest.approx(known, rel=0.005)


def test_two_rows_seldom_show_a_gain_that_is_luck():
    """60 jobs that learned nothing on two rows, 1,000 times."""
    draw, surely = random.Random(11), 0
    for _ in range(1000):
        gains = (ratio_estimate([draw.gauss(0, 1), draw.gauss(0, 1)], []) for _ in range(60))
        surely += any(gain.interval_for(60)[0] > 0 for gain in gains)
    assert surely / 1000 < 0.05


def test_the_best_of_many_by_luck_is_seldom_surely_better():
    """20 jobs that learned nothing, 500 times: the best one's interval excludes 0 in at most one of 20 searches."""
    draw, surely = random.Random(3), 0
    for _ in range(500):
        gains = [ratio_estimate([draw.gauss(0, 1) for _ in range(30)], []) for _ in range(20)]
        surely += max(gains, key=lambda one: one.mean).interval_for(20)[0] > 0
    assert surely / 500 < 0.05


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """2,000 samples of 40 rows whose lengths and losses vary together."""
    draw, truth, inside = random.Random(5), 1.5, 0
    for _ in range(2000):
        lengths = [draw.randint(1, 30) for _ in range(40)]
        totals = [length * (truth + draw.gauss(0, 1) / math.sqrt(length)) for length in lengths]
        low, high = ratio_estimate(totals, lengths).interval
        inside += low <= truth <= high
    assert 0.92 < inside / 2000 < 0.97


@pytest.mark.parametrize("copies", [2, 10])
def test_copies_of_a_row_make_the_interval_no_narrower(copies):
    """1,000 samples of 30 rows, each so many times: as rows of their own they would cover the truth in 84 and 45 %."""
    draw, inside = random.Random(13), 0
    clusters = [row for row in range(30) for _ in range(copies)]
    for _ in range(1000):
        drawn = [(draw.randint(1, 30), draw.gauss(0, 1)) for _ in range(30)]
        lengths, totals = [drawn[row][0] for row in clusters], [drawn[row][0] * drawn[row][1] for row in clusters]
        found = ratio_estimate(totals, lengths, clusters)
        low, high = found.interval
        inside += low <= 0 <= high
        assert found.rows == 30
    assert 0.92 < inside / 1000 < 0.97


def test_rows_that_are_all_equal_say_nothing_of_the_spread():
    one, better = (RowScores(totals=[loss] * 8, weights=[3] * 8, clusters=[0] * 8) for loss in (2.0, 1.0))
    assert one.minus(better).mean == pytest.approx(1 / 3)
    assert not one.surely_worse_than(better)
    assert one.as_good_as(better)


def test_pairing_removes_what_rows_have_in_common():
    draw = random.Random(7)
    hard = [draw.uniform(0, 10) for _ in range(60)]
    one, other = (RowScores(totals=[loss + shift + draw.gauss(0, 0.05) for loss in hard]) for shift in (0.0, 0.1))
    difference = other.minus(one)
    assert difference.interval[0] > 0  # surely worse,
    assert one.estimate().interval[1] > other.mean  # which the losses by themselves do not show


def test_scores_of_other_rows_are_not_paired():
    one = RowScores(totals=[1.0, 2.0])
    others = (
        RowScores(totals=[1.0]),
        RowScores(totals=[1, 2], weights=[1, 2]),
        RowScores(totals=[1, 2], clusters=[0, 0]),  # a worker that tells none reads rows in another order
        RowScores(metric="error", totals=[1, 0]),
    )
    for other in others:
        assert not one.comparable(other)
        with pytest.raises(ValueError, match="cannot be paired"):
            one.minus(other)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"totals": []}, "at least 1 item"),
        ({"totals": [math.nan]}, "finite number"),
        ({"totals": [1.0], "weights": [1, 2]}, "1 totals, but 2 weights"),
        ({"totals": [1.0], "clusters": [1, 2]}, "1 totals, but 2 clusters"),
        ({"totals": [0.0] * 4097}, "at most 4096 items"),
    ],
)
def test_bad_scores_are_refused(bad, said):
    with pytest.raises(ValueError, match=said):
        RowScores(**bad)


def test_one_row_says_nothing_of_the_spread():
    assert ratio_estimate([1.0], [3]).interval == (-math.inf, math.inf)
