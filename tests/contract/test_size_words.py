"""Bytes in words."""

import pytest

from contract.wording.size_words import gibibytes, gigabytes


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0.0 MB"), (12_340_000, "12.3 MB"), (999_999_999, "1000.0 MB"), (10**9, "1.0 GB"), (2_460_000_000, "2.5 GB")],
)
def test_from_a_gigabyte_on_it_is_told_in_gigabytes(size, said):
    assert gigabytes(size) == said


def test_memory_is_told_so_that_what_does_not_fit_differs_from_what_there_is():
    assert [gibibytes(size) for size in (0, 8 * 2**30, 79.96 * 2**30)] == ["0.00 GiB", "8.00 GiB", "79.96 GiB"]
