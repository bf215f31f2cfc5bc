"""A data set's first rows as a task would train on them, with learned text between « and ». The service computes tokens and
masks."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from motet.api.resources import Preview, PreviewSequence


def drawn(preview: Preview) -> RenderableType:
    """Every row: its numbers, its text, its problem."""
    parts: list[RenderableType] = []
    for row in preview.rows:
        for sequence in row.sequences:
            answer = f", {sequence.answer}" if sequence.answer else ""
            parts.append(Text(f"line {row.line}{answer}: {sequence.trained} tokens, {sequence.labels} of them learned"))
            parts.append(_marked(sequence))
        if row.problem is not None:
            parts.append(Text(f"line {row.line} {row.problem.message}"))
        parts.append(Text())
    counted = f"Of {len(preview.rows)} rows {preview.truncated} are cut, {preview.skipped} left out."
    return Group(*parts, Text(f"«…» is learned. {counted}"))


def _marked(sequence: PreviewSequence) -> Text:
    """The sequence's text, with learned parts in bold between marks."""
    text = Text()
    parts = groupby(zip(sequence.pieces, sequence.learned, strict=True), key=lambda token: token[1])
    for learned, tokens in parts:
        said = "".join(piece for piece, _ in tokens)
        text.append(f"«{said}»" if learned else said, "bold green" if learned else "dim")
    if len(sequence.tokens) < sequence.trained:
        text.append(f" … and {sequence.trained - len(sequence.tokens)} tokens more", "dim")
    return text
