"""What rows lost to training.max_seq_len, and validation rows that are also trained on, in words."""

from collections.abc import Mapping
from typing import Any


def cut_sentence(truncated: int | None, skipped: int | None) -> str:
    """truncated: rows that were cut. skipped: rows, mostly of these, with no token left to learn. None: not known. Empty where
    none is known to be either."""
    said = []
    if truncated:
        said.append(
            f"{truncated:,} {'row was' if truncated == 1 else 'rows were'} longer than training.max_seq_len, and cut to it"
        )
    if skipped:
        row, was = ("row", "was") if skipped == 1 else ("rows", "were")
        said.append(f"{skipped:,} {row} with nothing left to learn {was} left out")
    return "; ".join(said)


def overlap_sentence(overlap: int | None, validation: int | None) -> str:
    """overlap: how many of the `validation` rows are also trained on; None: not known. Empty where none is known to be."""
    if not overlap or validation is None:
        return ""
    are = "row is" if validation == 1 else "rows is" if overlap == 1 else "rows are"
    say = "nothing" if overlap >= validation else "little" if 2 * overlap >= validation else "less"
    return (
        f"{overlap:,} of {validation:,} validation {are} also trained on, so validation losses say {say} of unseen rows; take "
        f"{'it' if overlap == 1 else 'them'} out of the training file"
    )


def overlap_told(data: Mapping[str, Any]) -> str:
    """What a `base` event's data tells of them, to follow its loss; of most events nothing."""
    rows = data.get("rows")
    said = overlap_sentence(rows.get("overlap"), rows.get("validation")) if isinstance(rows, dict) else ""
    return f"; {said}" if said else ""
