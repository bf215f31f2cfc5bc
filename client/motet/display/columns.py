"""A table that fits its terminal: ids are never broken, and the least needed columns go before anything is folded.

Values in, a rich table out. Knows neither tasks nor nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2  # columns of the terminal between two of the table
_LEAST = 16  # a folding column gets at least this many, or goes


@dataclass(frozen=True)
class Column:
    """`need`: columns with the highest number go first where the terminal is narrow; 0 always stays. `folds`: long cells are
    folded, others are printed whole."""

    heading: str
    need: int = 0
    folds: bool = False
    right: bool = False


class Columns:
    """Rows of cells below headings, drawn for the width at hand. `styles` has one entry a row, or is empty."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        self._columns, self._rows, self._styles = columns, rows, styles

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self._fitting(options.max_width)
        headed = any(column.heading for column in self._columns)
        table = Table(
            box=None,
            padding=(0, _GAP, 0, 0),
            pad_edge=False,
            header_style="dim",
            show_header=headed,
        )
        for at in kept:
            column = self._columns[at]
            folds = {"overflow": "fold", "min_width": min(_LEAST, self._width(at))} if column.folds else {"no_wrap": True}
            table.add_column(Text(column.heading), justify="right" if column.right else "left", **folds)
        for row, style in zip(self._rows, self._styles or [""] * len(self._rows), strict=True):
            table.add_row(*(Text(row[at]) for at in kept), style=style)
        yield table

    def _fitting(self, width: int) -> list[int]:
        """The columns that fit, in order. Empty ones go in any case."""
        kept = [at for at, column in enumerate(self._columns) if not column.need or any(row[at] for row in self._rows)]
        while sum(self._least(at) + _GAP for at in kept) > width + _GAP:
            spare = max(kept, key=lambda at: self._columns[at].need)
            if not self._columns[spare].need:
                break
            kept.remove(spare)
        return kept

    def _least(self, at: int) -> int:
        return min(_LEAST, self._width(at)) if self._columns[at].folds else self._width(at)

    def _width(self, at: int) -> int:
        lines = [self._columns[at].heading, *(line for row in self._rows for line in row[at].splitlines())]
        return max(map(cell_len, lines))
