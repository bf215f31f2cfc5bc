"""A task's data: JSONL files to examples, what is held out, and the order in which a job reads them.

Knows no tokenizer's details (contract/row_encoding.py) and no tensors. Everything is drawn from the rows' bytes
and the jobs' seeds, so that all jobs validate on the same rows and a resumed job reads on where it stopped.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contract.row_encoding import RowError, RowReader, Tokens, cut, learns
from contract.task_spec import Objective, Schedule, TaskSpec
from worker.data.row_reader import example
from worker.model.flat_batch import Example

_ROWS_AT_ONCE = 256
_LEAST_VALIDATION = 32  # rows; fewer would rank jobs by chance, whatever they cost


class DataError(ValueError):
    """A data set that cannot be trained on. The message names the line and the way out."""


@dataclass(frozen=True)
class Rows:
    """Rows as sequences of tokens: one a row, or of preference rows two, the chosen answer's and then the rejected one's."""

    sequences: list[Example]
    per_row: int = 1

    def __len__(self) -> int:
        return len(self.sequences) // self.per_row

    @cached_property
    def lengths(self) -> list[int]:
        """How many tokens each sequence takes on the axis."""
        return [axis_length(example) for example in self.sequences]

    @cached_property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def mean_length(self) -> float:
        """Tokens of a row on average."""
        return sum(self.lengths) / len(self)

    def places(self, rows: Iterable[int]) -> list[int]:
        """Where the sequences of these rows are."""
        return [int(row) * self.per_row + part for row in rows for part in range(self.per_row)]


@dataclass(frozen=True)
class DataSet:
    """Rows of one task, tokenised once and shared by its jobs."""

    train: Rows
    validation: Rows
    truncated: int  # rows longer than max_seq_len, cut
    skipped: int  # rows with nothing left to learn after the cut
    unused: int = 0  # validation rows that no evaluation reads

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, trained or validated."""
        return max(self.train.longest, self.validation.longest)

    @property
    def sequences(self) -> Iterator[Example]:
        return chain(self.train.sequences, self.validation.sequences)


def axis_length(example: Example) -> int:
    """How many tokens an example takes on the flat axis: those before its last label, which is only predicted."""
    return int(np.flatnonzero(example.loss_mask)[-1])


@dataclass
class _Read:
    """Rows of one file that can be learned from, and the sha256 of each row's bytes."""

    rows: list[tuple[Example, ...]] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    truncated: int = 0
    skipped: int = 0


def load(
    spec: TaskSpec, train_file: Path, validation_file: Path | None, reader: RowReader, tick: Callable[[], None] = lambda: None
) -> DataSet:
    """Read, tokenise, cut to `max_seq_len` and split. `tick` is called as the work goes on. Raises DataError."""
    read = _read(train_file, reader, spec, tick)
    if validation_file is not None:
        held = _read(validation_file, reader, spec, tick)
        train, validation, hashes = read.rows, held.rows, held.hashes
        truncated, skipped = read.truncated + held.truncated, read.skipped + held.skipped
    else:
        out = sorted(held_out(read.hashes, spec.dataset.validation_fraction, spec.dataset.max_validation_rows))
        hidden = {read.hashes[place] for place in out}
        validation, hashes = [read.rows[place] for place in out], [read.hashes[place] for place in out]
        train = [row for row, digest in zip(read.rows, read.hashes, strict=True) if digest not in hidden]
        truncated, skipped = read.truncated, read.skipped
    for name, kept in (("training", train), ("validation", validation)):
        if not kept:
            raise DataError(_why_none(name, skipped, len(train) + len(validation), spec.training.max_seq_len))
    trained = _rows(train)
    size = _affordable(spec, trained, _rows(validation))
    read_rows = [validation[place] for place in sorted(_lowest(hashes, size))]
    return DataSet(trained, _rows(read_rows), truncated, skipped, len(validation) - size)


def _why_none(name: str, skipped: int, others: int, max_seq_len: int) -> str:
    """Why no row is left to train or validate on: cut too short, or equal to those on the other side of the split."""
    if skipped:
        return (
            f"no {name} rows are left: {skipped} had nothing to learn within max_seq_len {max_seq_len}, {others} others remain "
            "in all; raise training.max_seq_len or bring more rows"
        )
    return (
        f"no {name} rows are left: the {others} rows are too much alike to be split, since equal rows stay on one side; "
        "bring more distinct rows, or name a validation file"
    )


def _rows(rows: list[tuple[Example, ...]]) -> Rows:
    return Rows([example for row in rows for example in row], len(rows[0]) if rows else 1)


def _affordable(spec: TaskSpec, train: Rows, validation: Rows) -> int:
    """How many validation rows keep every job's evaluations within their share of the tokens it trains on; at least 32."""
    share = spec.early_exit.max_evaluation_share
    if share is None:
        return len(validation)
    row_budgets = []
    for config in {config.batch_size: config for config in spec.jobs()}.values():
        calendar = Schedule.of(spec, config, len(train))
        trained = calendar.total_steps * min(config.batch_size, len(train)) * train.mean_length
        row_budgets.append(share * trained / calendar.evaluations / validation.mean_length)
    return min(len(validation), max(_LEAST_VALIDATION, int(min(row_budgets))))


def held_out(hashes: list[bytes], fraction: float, at_most: int) -> set[int]:
    """Places of the rows held out for validation: those with the lowest hashes, `fraction` of all (rounded), at least one.

    Rows that equal a held-out row must leave training too, which is the caller's part.
    """
    size = min(at_most, max(1, int(len(hashes) * fraction + 0.5)))
    return _lowest(hashes, size)


def _lowest(hashes: list[bytes], size: int) -> set[int]:
    return set(sorted(range(len(hashes)), key=lambda place: (hashes[place], place))[:size])


class Order:
    """Which rows a job reads at which step: each epoch a permutation drawn from (seed, epoch) alone, the last batch short."""

    def __init__(self, rows: int, batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self._per_epoch = -(-rows // batch_size)
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def batch(self, step: int) -> np.ndarray:
        """Row numbers, int64 [<= batch_size], of the optimizer step number `step`, counted from 0."""
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            # RandomState's streams are frozen for good, which a resume under another numpy needs.
            self._permutation = np.random.RandomState([self._seed, epoch]).permutation(self._rows)
            self._epoch = epoch
        return self._permutation[place * self._batch_size : (place + 1) * self._batch_size]


def _read(path: Path, reader: RowReader, spec: TaskSpec, tick: Callable[[], None]) -> _Read:
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    read = _Read()
    for first in range(0, len(lines), _ROWS_AT_ONCE):
        tick()
        some = lines[first : first + _ROWS_AT_ONCE]
        parsed = [_parse(line, first + place + 1) for place, line in enumerate(some)]
        for line, row in zip(some, _tokens(parsed, first + 1, reader, spec.objective), strict=True):
            _keep(read, line, row, spec.training.max_seq_len)
    return read


def _keep(read: _Read, line: bytes, row: tuple[Tokens, ...], max_seq_len: int) -> None:
    row, shorter = cut(row, max_seq_len)
    read.truncated += shorter
    if not learns(row):
        read.skipped += 1
        return
    read.rows.append(tuple(map(example, row)))
    read.hashes.append(hashlib.sha256(line).digest())


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"line {number} is not a JSON object")
    return row


def _tokens(rows: list[dict[str, Any]], first_line: int, reader: RowReader, objective: Objective) -> list[tuple[Tokens, ...]]:
    """The tokens of some rows; on an error, row by row once more, to name the line that is to blame."""
    try:
        return reader.read(rows, objective)
    except RowError:
        for number, row in enumerate(rows, first_line):
            try:
                reader.read([row], objective)
            except RowError as error:
                raise DataError(f"line {number}: {error}") from None
        raise
