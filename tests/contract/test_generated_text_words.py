"""Remarks beside the scores of generated texts, and texts that are too long to show."""

import pytest

from contract.wording.generated_text_words import remarks, shortened


def test_an_error_goes_first_then_notes_then_what_is_still_to_be_graded():
    assert remarks("no memory", ["2 rows have no prompt"], {"tone": 2, "judge": 1}) == (
        "no memory; 2 rows have no prompt; judge: 1 text is still to be graded; tone: 2 texts are still to be graded"
    )


def test_nothing_is_said_where_all_is_scored():
    assert remarks(None, [], {}) == ""


@pytest.mark.parametrize(
    ("text", "keep_end", "shown"),
    [("abcd", False, "abcd"), ("abcde", False, "abcd…"), ("abcde", True, "…bcde"), ("", True, "")],
)
def test_a_long_text_keeps_one_end(text, keep_end, shown):
    assert shortened(text, 4, keep_end) == shown
