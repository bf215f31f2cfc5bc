"""The rows of one file as tokens, on disk and memory-mapped: written once in batches, read row by row, never held whole.

A stream is a folder of flat arrays and a header with their sizes and sha256. One rename creates it, and every open verifies it.
Knows no tokenizer, no split and no location: token_cache.py places streams, and node_cache.py evicts them.

    tokens    int32 [all tokens]       sequence after sequence, each cut to max_seq_len
    labels    bool  [all tokens]       the loss mask
    counts    int32 [sequences]        tokens of each sequence
    lengths   int32 [sequences]        tokens of each on the flat axis (see axis_length)
    hashes    uint8 [rows, 32]         sha256 of each row's bytes
"""

import fcntl
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, overload
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from worker.data.disk_sync import sync
from worker.data.node_cache import HEADER
from worker.model.example import Example

log = logging.getLogger(__name__)

_FORMAT = 1
_BLOCK = 2**20
_PARTS: dict[str, Any] = {
    "tokens": np.int32,
    "labels": np.bool_,
    "counts": np.int32,
    "lengths": np.int32,
    "hashes": np.uint8,
}


class StreamDamaged(Exception):
    """The folder is not a whole token stream."""


def axis_length(example: Example) -> int:
    """Tokens of an example on the flat axis: those before its last label, which is only predicted."""
    return int(np.flatnonzero(example.loss_mask)[-1])


@dataclass(frozen=True)
class TokenStream:
    """An open stream. Stays readable while this object lives, even where its folder is removed; `_held` is a shared lock on the
    header, which shows an eviction that the stream is in use."""

    digest: str  # of all its bytes
    per_row: int
    rows: int
    truncated: int  # rows that were cut
    skipped: int  # rows left out, with no label left
    largest_token: int
    tokens: NDArray[np.int32]
    labels: NDArray[np.bool_]
    lengths: NDArray[np.int32]
    hashes: NDArray[np.uint8]
    bounds: NDArray[np.int64]  # where each sequence begins in `tokens`; one more than there are sequences
    _held: IO[bytes] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Where it is, or was when it was opened."""
        return Path(self._held.name).parent

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its folder: another process of the executor maps the same files."""
        return TokenStream.mapped, (self.folder,)

    @classmethod
    def mapped(cls, folder: Path) -> "TokenStream":
        """Map a stream that another process has checked and holds open; one object while it lives. Raises
        FileNotFoundError."""
        found = _mapped_streams.get(folder)
        if found is None:
            _mapped_streams[folder] = found = cls.open(folder, check=False)
        return found

    def example(self, sequence: int) -> Example:
        start, stop = self.bounds[sequence], self.bounds[sequence + 1]
        return Example(self.tokens[start:stop], self.labels[start:stop])

    @classmethod
    def open(cls, folder: Path, check: bool = True) -> "TokenStream":
        """Check the stream's bytes and map it. Raises FileNotFoundError where there is none, and StreamDamaged."""
        held = (folder / HEADER).open("rb")
        fcntl.flock(held, fcntl.LOCK_SH)
        said, digest = _header(held.read())
        for name, part in said["parts"].items() if check else ():
            _verify(folder / name, part)
        arrays = {name: _mapped(folder / name, dtype) for name, dtype in _PARTS.items()}
        counts = arrays.pop("counts")
        bounds = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=bounds[1:])
        if not len(arrays["lengths"]) == len(counts) == said["rows"] * said["per_row"] or bounds[-1] != len(arrays["tokens"]):
            raise StreamDamaged("its parts do not belong together")
        arrays["hashes"] = arrays["hashes"].reshape(-1, 32)
        numbers = {name: said[name] for name in ("per_row", "rows", "truncated", "skipped", "largest_token")}
        os.utime(held.fileno())  # marks it as used now
        members: dict[str, Any] = {**numbers, **arrays}
        return cls(digest=digest, bounds=bounds, _held=held, **members)


_mapped_streams: WeakValueDictionary[Path, TokenStream] = WeakValueDictionary()


class StreamView(Sequence[Example]):
    """Some rows of a stream, as their sequences in order; each is read on access."""

    def __init__(self, stream: TokenStream, rows: NDArray[np.int64]) -> None:
        self.stream = stream
        places = rows[:, None] * stream.per_row + np.arange(stream.per_row)
        self._places = places.ravel().astype(np.int32 if stream.rows * stream.per_row < 2**31 else np.int64)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Example: ...
    @overload
    def __getitem__(self, at: slice) -> list[Example]: ...
    def __getitem__(self, at: int | slice) -> Example | list[Example]:
        if isinstance(at, slice):
            return [self.stream.example(place) for place in self._places[at]]
        return self.stream.example(self._places[at])

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of each on the flat axis."""
        return self.stream.lengths[self._places]

    @property
    def digest(self) -> str:
        """Identifies the view: sha256 of the stream's digest and the rows shown."""
        return hashlib.sha256(self.stream.digest.encode() + self._places.astype("<i8").tobytes()).hexdigest()


class StreamWriter:
    """Writes a stream's arrays as rows come. Memory: a block of each array."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {name: (folder / name).open("wb") for name in _PARTS}
        self._digests = {name: hashlib.sha256() for name in _PARTS}
        self._pending = {name: bytearray() for name in _PARTS}
        self._rows, self._per_row, self._largest = 0, 1, 0
        self.truncated = self.skipped = 0

    def add(self, row: Sequence[Example], sha256: bytes) -> None:
        """Append a row that is learned from, and the sha256 of its bytes."""
        self._rows, self._per_row = self._rows + 1, len(row)
        for example in row:
            self._put("tokens", example.tokens.astype(np.int32, copy=False).tobytes())
            self._put("labels", example.loss_mask.tobytes())
            self._put("counts", len(example.tokens).to_bytes(4, "little"))
            self._put("lengths", axis_length(example).to_bytes(4, "little"))
            self._largest = max(self._largest, int(example.tokens.max()))
        self._put("hashes", sha256)

    def finish(self) -> None:
        """Sync everything and write the header, which completes the folder."""
        parts = {}
        for name, file in self._files.items():
            self._write(name)
            file.flush()
            os.fsync(file.fileno())
            parts[name] = {"bytes": file.tell(), "sha256": self._digests[name].hexdigest()}
        said = {
            "format": _FORMAT,
            "per_row": self._per_row,
            "rows": self._rows,
            "truncated": self.truncated,
            "skipped": self.skipped,
            "largest_token": self._largest,
            "parts": parts,
        }
        body = json.dumps(said).encode()
        with (self._folder / HEADER).open("wb") as header:
            header.write(body + b"\n" + hashlib.sha256(body).hexdigest().encode())
            header.flush()
            os.fsync(header.fileno())
        sync(self._folder)

    def close(self) -> None:
        """Close the files without flushing: what a failed write still buffers belongs to a discarded stream."""
        for file in self._files.values():
            file.raw.close()

    def _put(self, name: str, content: bytes) -> None:
        self._pending[name] += content
        if len(self._pending[name]) >= _BLOCK:
            self._write(name)

    def _write(self, name: str) -> None:
        self._files[name].write(self._pending[name])
        self._digests[name].update(self._pending[name])
        self._pending[name].clear()


@contextmanager
def written_stream(folder: Path) -> Iterator[StreamWriter]:
    """Write a stream into the folder, which is whole once the body has ended."""
    writer = StreamWriter(folder)
    try:
        yield writer
        writer.finish()
    finally:
        writer.close()


def create(target: Path, fill: Callable[[Path], None]) -> None:
    """Create the stream `target` as `fill` writes it into a folder, atomically. Where another process made it first, that one
    stays."""
    with _temporary(target.parent) as folder:
        fill(folder)
        try:
            folder.rename(target)
        except OSError:
            if not (target / HEADER).exists():
                raise
        sync(target.parent)


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="new-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # renamed away, or unfinished


def _header(content: bytes) -> tuple[dict[str, Any], str]:
    body, _, sha256 = content.partition(b"\n")
    digest = hashlib.sha256(body).hexdigest()
    if digest.encode() != sha256:
        raise StreamDamaged("its header is not whole")
    said: dict[str, Any] = json.loads(body)
    if said["format"] != _FORMAT:
        raise StreamDamaged(f"it has format {said['format']}, this worker reads {_FORMAT}")
    return said, digest


def _verify(path: Path, part: dict[str, Any]) -> None:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    if (size, digest.hexdigest()) != (part["bytes"], part["sha256"]):
        raise StreamDamaged(f"{path.name} is not what was written: {size} bytes, sha256 {digest.hexdigest()}")


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.empty(0, dtype)  # an empty file cannot be mapped
        held = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    held.madvise(mmap.MADV_RANDOM)  # jobs read rows in random order: no read-ahead into memory
    return np.frombuffer(held, dtype)
