"""Token streams of a node's files, made once for each (file, tokenizer, template, objective, truncation) and cached.

Tokenising runs in batches beside the training loop, and can be ended between two batches. Knows no split and no jobs.
"""

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contract.rows.row_encoding import RowReader, Tokens, learns, truncate
from contract.rows.tokenizer import RowError
from contract.task_spec import Objective
from worker.data.disk_full import room_needed
from worker.data.node_cache import LOCK, FileCache, remove
from worker.data.row_reader import example
from worker.data.token_stream import StreamDamaged, StreamWriter, TokenStream, create

log = logging.getLogger(__name__)

_KEY_FORMAT = 2  # to be raised whenever contract/rows makes other tokens of the same row
_BATCH_ROWS, _BATCH_BYTES = 256, 2**20  # a batch ends at the first of both: one call of the tokenizer, and its memory
_LOOK_SECONDS = 0.2  # between looks at a stream that another process makes

Tick = Callable[[], None]


class DataError(ValueError):
    """A data set that cannot be trained on. The message names the line and the way out."""


@dataclass(frozen=True)
class Reading:
    """How rows become tokens. fingerprint: of the tokenizer with its template; created_at: of the task, where the template
    writes the date."""

    reader: RowReader
    objective: Objective
    max_seq_len: int
    fingerprint: str = ""
    created_at: datetime | None = None

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


def stream_of(file: FileCache, reading: Reading, fetch: Callable[[], Path], on_progress: Tick) -> TokenStream:
    """The file's stream, opened; tokenised from the file that `fetch` brings where it is not cached. `on_progress` is called
    between batches, and may raise to end it. Raises DataError, DiskFull, and FileNotFoundError if the file is erased
    meanwhile."""
    folder = file.streams / reading.key
    found = _open(folder)
    if found is not None:
        return found
    with _alone(folder, on_progress):  # so that executors that need the same rows tokenise them once
        found = _open(folder)
        if found is not None:
            return found
        began, path = time.monotonic(), fetch()
        with file.cache.relief(path), room_needed(folder):
            create(folder, lambda writer: tokenise(path, reading, writer, on_progress))
        made = TokenStream.open(folder)
        log.info("%d rows of file %s are tokenised, in %.1f s", made.rows, file.sha256, time.monotonic() - began)
    file.cache.evict()
    return made


def loose_stream(path: Path, reading: Reading, on_progress: Tick) -> TokenStream:
    """A stream outside any cache: deleted from the disk when it is closed."""
    with TemporaryDirectory(prefix="motet-tokens-") as folder:
        create(Path(folder) / "stream", lambda writer: tokenise(path, reading, writer, on_progress))
        return TokenStream.open(Path(folder) / "stream")


def tokenise(path: Path, reading: Reading, writer: StreamWriter, on_progress: Tick) -> None:
    """Read the file's rows into the stream, in batches. Raises DataError."""
    with path.open("rb") as file:
        for first, lines in _batches(file):
            on_progress()
            parsed = [_parse(line, number) for number, line in enumerate(lines, first)]
            for line, row in zip(lines, _tokens(parsed, first, reading), strict=True):
                _keep(writer, line, row, reading.max_seq_len)


def _open(folder: Path) -> TokenStream | None:
    """The cached stream if it is whole; removes a damaged one."""
    try:
        return TokenStream.open(folder)
    except FileNotFoundError:
        if folder.exists():
            remove(folder)
    except StreamDamaged as error:
        log.error("the token stream %s is damaged and will be made anew: %s", folder, error)
        remove(folder)
    return None


@contextmanager
def _alone(folder: Path, on_progress: Tick) -> Iterator[None]:
    """Hold the lock under which a stream is made; other processes wait for it."""
    with folder.with_suffix(LOCK).open("ab") as lock:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            on_progress()
            time.sleep(_LOOK_SECONDS)
        yield


def _batches(lines: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The number of each batch's first line, from 1, and its lines without their ends."""
    first, batch, size = 1, [], 0
    for line in lines:
        batch.append(line.removesuffix(b"\n"))
        size += len(line)
        if len(batch) == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield first, batch
            first, batch, size = first + len(batch), [], 0
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
    except ValueError as error:
        raise DataError(f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"line {number} is not a JSON object")
    return row


def _tokens(rows: list[dict[str, Any]], first_line: int, reading: Reading) -> list[tuple[Tokens, ...]]:
    """The tokens of some rows; on an error reads them row by row, to name the faulty line."""
    reader, objective = reading.reader, reading.objective
    try:
        return reader.read(rows, objective)
    except RowError:
        for number, row in enumerate(rows, first_line):
            try:
                reader.read([row], objective)
            except RowError as error:
                raise DataError(f"line {number}: {error}") from None
        raise
