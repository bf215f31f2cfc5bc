"""The benchmark of a large file in small: real executor processes, and the service's check of the file in a third."""

import pytest

from benchmarks.data import measure


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_a_second_placement_finds_the_tokens_of_the_first(chat: bool) -> None:
    found = measure(3000, chat)
    assert (found["rows_that_differ"], found["losses_off"]) == (0, 0.0)
    assert found["intake"]["rows"] == found["first"]["rows"] == found["again"]["rows"] == 3000
    assert found["again"]["tokenise_s"] == 0.0 < found["first"]["tokenise_s"]
    for placed in (found["first"], found["again"]):
        assert set(placed["losses"]) == set(range(1, 9))
        assert 0 < placed["idle_rss"] < placed["peak_rss"]
