"""Which decode steps find their memory where another one's was captured."""

import pytest
from grouped_lora.work_table import ClassSize

from worker.generate.cuda.decode_batch import DecodeShape


def shape(rows: int = 8, pages: int = 4, classes: tuple[int, ...] = (16, 64)) -> DecodeShape:
    return DecodeShape(rows, pages, tuple(ClassSize(rank, 2, 2) for rank in classes))


@pytest.mark.parametrize("more", [{"rows": 16}, {"pages": 8}, {"classes": (16, 128)}, {"classes": (16, 32, 64)}])
def test_a_larger_step_takes_as_much_as_a_smaller_one_and_not_the_reverse(more: dict) -> None:
    assert shape(**more).takes_as_much_as(shape())
    assert not shape().takes_as_much_as(shape(**more))
    assert shape().takes_as_much_as(shape())


def test_more_rows_do_not_make_up_for_fewer_pages() -> None:
    assert not shape(rows=16, pages=2).takes_as_much_as(shape())
