"""Reads the rows of a file into a token stream, in batches. Knows no cache, no split and no jobs."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from contract.rows.row_encoding import RowReader, Tokens, learns, truncate
from contract.rows.tokenizer import RowError
from contract.task_spec import Objective
from worker.data.row_reader import example
from worker.data.token_stream import StreamWriter, written_stream

_KEY_FORMAT = 4  # to be raised whenever contract/rows makes other tokens of the same row, or leaves out one that it took
_BATCH_ROWS, _BATCH_WORK = 256, 2**20  # a batch ends at the first of both: one call of the tokenizer, and its memory

# of `work_of`, as measured: in the time of a byte that is tokenised, 256 are rendered, and a message renders as 2 KiB do
_RENDERED, _MESSAGE = 256, 2048
_OBJECT = re.compile(rb'\{\s*"')  # where one begins that is not empty: within a string a quote has a backslash before it

Tick = Callable[[], None]


class DataError(ValueError):
    """A data set that cannot be trained on. The message names the line and the way out."""


@dataclass(frozen=True)
class Reading:
    """How rows become tokens. fingerprint: of the tokenizer with its template; created_at: of the task, where the template
    writes the date; folder: of the tokenizer, from which another process can load it."""

    reader: RowReader
    objective: Objective
    max_seq_len: int
    fingerprint: str = ""
    created_at: datetime | None = None
    folder: Path | None = None

    @property
    def key(self) -> str:
        """Names the stream among those of its file."""
        said = [
            _KEY_FORMAT,
            self.fingerprint,
            self.objective.type,
            self.objective.turns,
            self.max_seq_len,
            self.created_at.isoformat() if self.created_at is not None else None,
        ]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def work_of(line: bytes) -> int:
    """About how long a row takes to read, in bytes of a plain text that take as long. Each turn of a conversation is found by
    rendering all that stands before it."""
    messages = len(_OBJECT.findall(line))  # or a few more: of tools, of calls
    return len(line) + messages * (len(line) + messages * _MESSAGE) // _RENDERED


def tokenise(path: Path, reading: Reading, folder: Path, on_progress: Tick) -> None:
    """Write the file's rows into `folder` as a stream, in batches; `on_progress` is called between two. Raises DataError."""
    with written_stream(folder) as writer, path.open("rb") as file:
        for first, lines in _batches(file):
            on_progress()
            parsed = [_parse(line, number) for number, line in enumerate(lines, first)]
            for line, row in zip(lines, _tokens(parsed, first, reading), strict=True):
                _keep(writer, line, row, reading.max_seq_len)


def _batches(lines: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The number of each batch's first line, from 1, and its lines without their ends."""
    first, batch, work = 1, [], 0
    for line in lines:
        batch.append(line.removesuffix(b"\n"))
        work += work_of(line)
        if len(batch) == _BATCH_ROWS or work >= _BATCH_WORK:
            yield first, batch
            first, batch, work = first + len(batch), [], 0
    if batch:
        yield first, batch


def _keep(writer: StreamWriter, line: bytes, row: tuple[Tokens, ...], max_seq_len: int) -> None:
    row, shorter = truncate(row, max_seq_len)
    writer.truncated += shorter
    if learns(row):
        writer.add(tuple(map(example, row)), hashlib.sha256(line).digest())
    else:
        writer.skipped += 1


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"line {number} is not UTF-8: {error.reason} at byte {error.start + 1} of the line") from None
    except ValueError as error:
        raise DataError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"line {number} is not a JSON object")
    return row


def _tokens(rows: list[dict[str, Any]], first_line: int, reading: Reading) -> list[tuple[Tokens, ...]]:
    """The tokens of some rows; on an error reads them row by row, to name the faulty line."""
    reader, objective = reading.reader, reading.objective
    try:
        return reader.read(rows, objective, reading.max_seq_len)
    except RowError:
        for number, row in enumerate(rows, first_line):
            try:
                reader.read([row], objective, reading.max_seq_len)
            except RowError as error:
                raise DataError(f"line {number}: {error}") from None
        raise
