"""What rows lost, and validation rows that are also trained on, in words."""

import pytest

from contract.wording.row_words import cut_sentence, overlap_sentence, overlap_told


@pytest.mark.parametrize(
    ("overlap", "validation", "said"),
    [
        (4, 5, "4 of 5 validation rows are also trained on, so validation losses say little of unseen rows; take them"),
        (5, 5, "5 of 5 validation rows are also trained on, so validation losses say nothing of unseen rows; take them"),
        (1, 2000, "1 of 2,000 validation rows is also trained on, so validation losses say less of unseen rows; take it"),
        (1, 1, "1 of 1 validation row is also trained on, so validation losses say nothing of unseen rows; take it"),
    ],
)
def test_how_many_rows_validate_and_train(overlap, validation, said):
    assert overlap_sentence(overlap, validation) == f"{said} out of the training file"


@pytest.mark.parametrize(("overlap", "validation"), [(None, 5), (0, 5), (None, None)])
def test_nothing_is_said_where_none_does_or_nobody_counted(overlap, validation):
    assert overlap_sentence(overlap, validation) == ""


@pytest.mark.parametrize(
    ("truncated", "skipped", "said"),
    [
        (
            10,
            4,
            "10 rows were longer than training.max_seq_len, and cut to it; 4 rows with nothing left to learn were left out",
        ),
        (1, 0, "1 row was longer than training.max_seq_len, and cut to it"),
        (0, 1, "1 row with nothing left to learn was left out"),
        (0, 0, ""),
        (None, None, ""),
    ],
)
def test_what_rows_lost(truncated, skipped, said):
    assert cut_sentence(truncated, skipped) == said


@pytest.mark.parametrize("data", [{}, {"rows": None}, {"rows": {"validation": 5}}, {"rows": {"overlap": 0, "validation": 5}}])
def test_most_events_tell_nothing_of_them(data):
    assert overlap_told(data) == ""
