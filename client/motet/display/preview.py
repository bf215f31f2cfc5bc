"""`motet preview`: prints a data set's first rows as a task would train on them, with learned text between « and ».

Uses the client; the service computes tokens and masks.
"""

from itertools import groupby

from pydantic import Field
from rich.text import Text

from contract.strict import Message
from motet.display.narrator import Narrator


class PreviewProblem(Message):
    """What is wrong with a row, or what truncation will remove from it."""

    code: str
    message: str


class PreviewSequence(Message):
    """One sequence of the model's input. tokens, pieces (their text) and learned (the loss mask) have one entry per token."""

    answer: str | None = None
    length: int
    trained: int
    labels: int
    truncated: bool
    tokens: list[int]
    pieces: list[str]
    learned: list[bool]


class PreviewRow(Message):
    """One row: one sequence, or two for a preference, one per answer."""

    line: int
    sequences: list[PreviewSequence]
    problem: PreviewProblem | None = None


class Preview(Message):
    """Rows of a file as a task would train on them."""

    base_model: str
    max_seq_len: int
    rows: list[PreviewRow]
    truncated: int = 0
    skipped: int = Field(default=0, description="Rows with nothing left to learn")


def show(preview: Preview, narrator: Narrator) -> None:
    """Print every row: its numbers, its text, its problem."""
    for row in preview.rows:
        for sequence in row.sequences:
            answer = f", {sequence.answer}" if sequence.answer else ""
            narrator.say(f"line {row.line}{answer}: {sequence.trained} tokens, {sequence.labels} of them learned")
            narrator.say(drawn(sequence))
        if row.problem is not None:
            narrator.say(f"line {row.line} {row.problem.message}")
        narrator.say("")
    narrator.say(f"«…» is learned. Of {len(preview.rows)} rows {preview.truncated} are cut, {preview.skipped} left out.")


def drawn(sequence: PreviewSequence) -> Text:
    """The sequence's text, with learned parts in bold between marks."""
    text = Text()
    parts = groupby(zip(sequence.pieces, sequence.learned, strict=True), key=lambda token: token[1])
    for learned, tokens in parts:
        said = "".join(piece for piece, _ in tokens)
        text.append(f"«{said}»" if learned else said, "bold green" if learned else "dim")
    if len(sequence.tokens) < sequence.trained:
        text.append(f" … and {sequence.trained - len(sequence.tokens)} tokens more", "dim")
    return text
