"""Similarities against textbook, paper and Google's package; of any texts, and of endless ones."""

from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.metrics.scored import like, score
from worker.metrics.similarity import bleu, chrf, fuzzy_match, rouge_l, rouge_n


@pytest.mark.parametrize(
    ("text", "reference", "unigrams", "bigrams", "longest"),
    [
        (
            "The Phoenix is a pub near Crowne Plaza Hotel.",
            "The Phoenix pub is located close to the Crowne Plaza Hotel, and serves food.",
            *(0.608696, 0.285714, 0.521739),
        ),
        (
            "It's a well-known U.S. bar_stool: 3.5 of 5!",
            "The well known US bar stool has 3.5 of 5 stars.",
            0.64,
            0.434783,
            0.64,
        ),
        ("snake_case names are two words", "snake case names are two words", 1, 1, 1),
        ("Don\u2019t stop—go on", "dont stop go on", 0.666667, 0.571429, 0.666667),
    ],
)
def test_of_english_texts_rouge_is_that_of_googles_package(
    text: str, reference: str, unigrams: float, bigrams: float, longest: float
) -> None:
    """Stored values of rouge_score 0.1.2, without its stemmer."""
    found = (rouge_n(1, text, reference), rouge_n(2, text, reference), rouge_l(text, reference))
    assert found == pytest.approx((unigrams, bigrams, longest), abs=1e-6)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_rouge_l_is_the_f_measure_of_the_textbook_recurrence(left: list[str], right: list[str]) -> None:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    common = table[-1][-1]
    expected = 2 * common / (len(left) + len(right)) if left and right else 0.0
    assert rouge_l(" ".join(left), " ".join(right)) == pytest.approx(expected)


def chrf_of_the_paper(text: str, reference: str) -> float:
    """Mean precision and mean recall of n-grams up to 6 of characters without spaces, over the orders that both texts have."""
    ours, wanted = ("".join(part.split()) for part in (text, reference))
    precisions, recalls = [], []
    for order in range(1, 1 + min(6, len(ours), len(wanted))):
        left, right = (Counter(part[at : at + order] for at in range(len(part) - order + 1)) for part in (ours, wanted))
        matches = (left & right).total()
        precisions.append(matches / left.total())
        recalls.append(matches / right.total())
    if not any(precisions):
        return 0.0
    precision, recall = fmean(precisions), fmean(recalls)
    return 5 * precision * recall / (4 * precision + recall)


@given(st.text("ab c", max_size=12), st.text("ab c", max_size=12))
def test_chrf_is_the_f_score_of_the_papers_definition(text: str, reference: str) -> None:
    assert chrf(text, reference) == pytest.approx(chrf_of_the_paper(text, reference))


@given(st.text(max_size=40), st.text(max_size=40))
def test_similarities_of_any_texts_are_from_0_to_1(text: str, reference: str) -> None:
    for similarity in (bleu, chrf, fuzzy_match, rouge_l):
        assert 0 <= similarity(text, reference) <= 1


@pytest.mark.parametrize("metric", [{"type": "bleu"}, {"type": "chrf"}, like("fuzzy_match"), {"type": "rouge_l"}])
@pytest.mark.parametrize("text", ["a" * 1_000_000, "(" * 1_000_000, "1," * 500_000, "&lt;" * 250_000, "a " * 500_000])
def test_similarities_of_endless_texts_hold_nobody_up(metric: dict[str, Any], text: str) -> None:
    assert score(metric, text, text) in (0, pytest.approx(1))
