"""Wins, ties and losses against the base, prompt by prompt, and the interval of their share."""

from math import comb

import pytest

from service.tasks.pairwise_wins import wilson, wins_over


def test_prompts_are_counted_by_each_metric_that_both_have_of_the_same_prompts():
    base = {"rouge": [0.5, 0.5, 0.5, 0.25], "exact": [1, 0, 1, 0], "short": [1, 1, 1], "gone": [1, 1, 1, 1], "empty": []}
    own = {"rouge": [0.75, 0.5, 0.25, 0.5], "exact": [1, 0, 1, 0], "short": [1, 1, 1, 1], "new": [1, 1, 1, 1], "empty": []}
    exact, rouge = wins_over(base, own, 1)
    assert (rouge.metric, rouge.wins, rouge.ties, rouge.losses) == ("rouge", 2, 1, 1)
    assert rouge.win_share.share == pytest.approx(2 / 3)
    assert rouge.sentence == (
        "by rouge the adapter's text is better than the base's on 2 prompts, worse on 1, as good on 1: "
        "it wins 67% (21% to 94%) of those that differ"
    )
    assert (exact.metric, exact.wins, exact.ties, exact.losses, exact.win_share) == ("exact", 0, 4, 0, None)
    assert exact.sentence.endswith("on 0 prompts, worse on 0, as good on 4")


def test_nothing_is_counted_without_scores():
    assert wins_over({}, {"rouge": [1.0]}, 1) == wins_over({"rouge": [1.0]}, {}, 1) == []


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_wilsons(successes, trials, low, high):
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_the_interval_of_the_best_of_many_holds_for_all_of_them():
    """Jobs as good as the base: hardly one search in twenty has a best one that seems better."""
    trials, jobs = 64, 16
    (alone, _), (among, _) = wilson(40, trials), wilson(40, trials, jobs)
    assert among < alone
    below = [wilson(k, trials, jobs)[0] <= 0.5 for k in range(trials + 1)]
    one = sum(comb(trials, k) for k in range(trials + 1) if below[k]) / 2**trials
    assert one**jobs > 0.94
