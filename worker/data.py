"""A task's data: JSONL files to examples, what is held out, and the order in which a job reads them.

Knows no tokenizer's details (rows.py) and no tensors. Everything is drawn from the rows' bytes and the jobs' seeds, so that
all jobs validate on the same rows and a resumed job reads on where it stopped.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from contract.spec import TaskSpec
from worker.model.batch import Example
from worker.rows import RowError, RowReader

_ROWS_AT_ONCE = 256


class DataError(ValueError):
    """A data set that cannot be trained on. The message names the line and the way out."""


@dataclass(frozen=True)
class DataSet:
    """Examples of one task, tokenised once and shared by its jobs."""

    train: list[Example]
    validation: list[Example]
    truncated: int  # rows longer than max_seq_len, cut
    skipped: int  # rows with nothing left to learn after the cut

    @cached_property
    def train_lengths(self) -> list[int]:
        """How many tokens each example takes on the axis."""
        return [axis_length(e) for e in self.train]

    @cached_property
    def validation_lengths(self) -> list[int]:
        return [axis_length(e) for e in self.validation]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest example, trained or validated."""
        return max(*self.train_lengths, *self.validation_lengths)

    @cached_property
    def mean_length(self) -> float:
        """Tokens of a training example on average."""
        return sum(self.train_lengths) / len(self.train_lengths)


def axis_length(example: Example) -> int:
    """How many tokens an example takes on the flat axis: those before its last label, which is only predicted."""
    return int(np.flatnonzero(example.loss_mask)[-1])


@dataclass
class _Rows:
    """Rows of one file that can be learned from, and the sha256 of each row's bytes."""

    examples: list[Example] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    truncated: int = 0
    skipped: int = 0


def load(
    spec: TaskSpec, train_file: Path, validation_file: Path | None, reader: RowReader, tick: Callable[[], None] = lambda: None
) -> DataSet:
    """Read, tokenise, cut to `max_seq_len` and split. `tick` is called as the work goes on. Raises DataError."""
    rows = _read(train_file, reader, spec.training.max_seq_len, tick)
    if validation_file is not None:
        held = _read(validation_file, reader, spec.training.max_seq_len, tick)
        train, validation = rows.examples, held.examples
        truncated, skipped = rows.truncated + held.truncated, rows.skipped + held.skipped
    else:
        out = held_out(rows.hashes, spec.dataset.validation_fraction, spec.dataset.max_validation_rows)
        hidden = {rows.hashes[place] for place in out}
        validation = [rows.examples[place] for place in sorted(out)]
        train = [example for example, digest in zip(rows.examples, rows.hashes, strict=True) if digest not in hidden]
        truncated, skipped = rows.truncated, rows.skipped
    for name, kept in (("training", train), ("validation", validation)):
        if not kept:
            raise DataError(
                f"no {name} rows are left: {skipped} had nothing to learn within max_seq_len "
                f"{spec.training.max_seq_len}, {len(train) + len(validation)} others remain in all; "
                "raise training.max_seq_len or bring more distinct rows"
            )
    return DataSet(train, validation, truncated, skipped)


def held_out(hashes: list[bytes], fraction: float, at_most: int) -> set[int]:
    """Places of the rows held out for validation: those with the lowest hashes, `fraction` of all (rounded), at least one.

    Rows that equal a held-out row must leave training too, which is the caller's part.
    """
    size = min(at_most, max(1, int(len(hashes) * fraction + 0.5)))
    return set(sorted(range(len(hashes)), key=lambda place: (hashes[place], place))[:size])


class Order:
    """Which rows a job reads at which step: each epoch a permutation drawn from (seed, epoch) alone, the last batch short."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self._per_epoch = -(-rows // batch_size)
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def batch(self, step: int) -> np.ndarray:
        """Row numbers, int64[<= batch_size], of the optimizer step number `step`, counted from 0."""
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            # RandomState's streams are frozen for good, which a resume under another numpy needs.
            self._permutation = np.random.RandomState([self._seed, epoch]).permutation(self._rows)
            self._epoch = epoch
        return self._permutation[place * self._batch_size : (place + 1) * self._batch_size]


def _read(path: Path, reader: RowReader, max_seq_len: int, tick: Callable[[], None]) -> _Rows:
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows = _Rows()
    for first in range(0, len(lines), _ROWS_AT_ONCE):
        tick()
        some = lines[first : first + _ROWS_AT_ONCE]
        parsed = [_parse(line, first + place + 1) for place, line in enumerate(some)]
        for line, example in zip(some, _examples(parsed, first + 1, reader), strict=True):
            _keep(rows, line, example, max_seq_len)
    return rows


def _keep(rows: _Rows, line: bytes, example: Example, max_seq_len: int) -> None:
    if len(example.tokens) > max_seq_len:
        example = Example(example.tokens[:max_seq_len], example.loss_mask[:max_seq_len])
        rows.truncated += 1
    if not example.loss_mask.any():
        rows.skipped += 1
        return
    rows.examples.append(example)
    rows.hashes.append(hashlib.sha256(line).digest())


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict) or not ("messages" in row or {"prompt", "completion"} <= row.keys()):
        raise DataError(f"line {number} is neither a chat row (messages) nor a completion row (prompt, completion)")
    return row


def _examples(rows: list[dict[str, Any]], first_line: int, reader: RowReader) -> list[Example]:
    """The examples of some rows; on an error, row by row once more, to name the line that is to blame."""
    try:
        return reader.read(rows)
    except RowError:
        for number, row in enumerate(rows, first_line):
            try:
                reader.read([row])
            except RowError as error:
                raise DataError(f"line {number}: {error}") from None
        raise
