"""Tables at every width: ids stay whole, what is needed least goes first."""

import pytest
from motet.display.columns import Column, Columns
from rich.console import Console

ID = "task_01m81q0cayw6zf7tq4sa0nxjw5"
COLUMNS = (Column("task"), Column("name", need=2, folds=True), Column("status"), Column("created", need=3))
ROWS = [(ID, "a search with a rather long name of many words", "succeeded", "12 min ago")]


def drawn(width: int, columns=COLUMNS, rows=ROWS) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(Columns(columns, rows))
    return capture.get()


@pytest.mark.parametrize("width", [50, 60, 70, 80, 120, 200])
def test_an_id_is_never_broken(width: int) -> None:
    said = drawn(width)
    assert ID in said
    assert "succeeded" in said
    assert all(len(line.rstrip()) <= width for line in said.splitlines())


def test_the_least_needed_columns_go_first() -> None:
    assert [("created" in drawn(width), "name" in drawn(width)) for width in (120, 65, 45)] == [
        (True, True),
        (False, True),
        (False, False),
    ]


def test_an_empty_column_goes_unless_it_always_stays() -> None:
    said = drawn(200, rows=[(ID, "", "", "now")])
    assert "name" not in said
    assert "status" in said


def test_styles_and_several_lines_in_a_cell_are_kept() -> None:
    assert "two" in drawn(80, rows=[(ID, "one\ntwo", "queued", "now")])
