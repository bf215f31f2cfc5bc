"""The flat axis: what lies where, what is left off, and what is refused."""

import numpy as np
import pytest
from grouped_lora.base.frozen_product import whole_rows

from worker.model.example import Example
from worker.model.flat_batch import ACTIVATION_ROWS, FlatBatch, Segment


def _row(tokens: list[int], labels: list[int]) -> Example:
    mask = np.zeros(len(tokens), bool)
    mask[labels] = True
    return Example(np.array(tokens, np.int32), mask)


def test_sequences_lie_end_to_end_up_to_their_last_label() -> None:
    batch = FlatBatch.of(
        [
            Segment(None, [_row([1, 2, 3, 4, 5], [2, 3]), _row([6, 7], [1])]),
            Segment(None, []),
            Segment(None, [_row([8, 9], []), _row(list(range(10, 30)), [4, 19])]),
        ]
    )
    assert batch.bounds == (0, 3, 4, 23)
    assert batch.tokens.tolist()[: batch.size] == [1, 2, 3, 6, *range(10, 29)]
    assert batch.positions.tolist()[: batch.size] == [0, 1, 2, 0, *range(19)]
    assert batch.ranges == ((0, 4), (4, 4), (4, 23))
    assert batch.label_indices.tolist() == [1, 2, 3, 7, 22]
    assert batch.label_tokens.tolist() == [3, 4, 7, 14, 29]
    assert batch.label_bounds == (0, 3, 3, 5)
    assert (batch.size, batch.longest) == (23, 19)


@pytest.mark.parametrize("examples", [[], [_row([1, 2], [1])], [_row([5], [])]])
def test_the_axis_ends_in_a_tail_that_nobody_owns(examples: list[Example]) -> None:
    batch = FlatBatch.of([Segment(None, examples)])
    assert len(batch.tokens) == len(batch.positions) == whole_rows(batch.size)
    assert batch.size == batch.ranges[0][1] == sum(example.labels for example in examples)
    assert batch.activation_ranges[-1] == (batch.size, whole_rows(batch.size))


def test_pieces_cover_every_row_once_and_end_where_a_job_ends() -> None:
    segments = [Segment(None, [_row([0] * n, [n - 1])]) for n in (301, 2, 129, 40)]
    batch = FlatBatch.of(segments)
    rows = [row for start, stop in batch.activation_ranges for row in range(start, stop)]
    assert rows == list(range(len(batch.tokens)))
    assert {stop for _, stop in batch.ranges} <= {stop for _, stop in batch.activation_ranges}
    assert max(stop - start for start, stop in batch.activation_ranges) == ACTIVATION_ROWS


def test_rows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="first token has nothing before it"):
        _row([1, 2], [0])
    with pytest.raises(ValueError, match="must be equal and flat"):
        Example(np.zeros(3, np.int32), np.zeros(2, bool))
