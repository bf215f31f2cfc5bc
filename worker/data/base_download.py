"""Downloads one file of a base: resumed where it stopped, verified by sha256. Knows no leases, no cache and no protocol.

The bytes come here block by block, so that a caller sees progress and can end it.
"""

import hashlib
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from contract.messages.placement_messages import BaseFile
from worker.data.disk_full import room_needed

_BLOCK = 2**20


class SourceAway(Exception):
    """The source does not answer, or stopped in the middle. What came stays; a retry may succeed."""


class SourceRefuses(ValueError):
    """The source does not give the file to this node, and a retry would not help."""


class WrongBaseBytes(Exception):
    """The downloaded file has not the sha256 that the service pinned. It is removed."""


class BaseSource(Protocol):
    """Where a base's files come from. `label` stands in sentences, `holder` is what the files are of there, and `way_out` what
    to do where it sends wrong bytes."""

    @property
    def label(self) -> str: ...

    @property
    def holder(self) -> str: ...

    @property
    def way_out(self) -> str: ...

    def blocks(self, file: BaseFile, start: int) -> Generator[bytes]:
        """The file's bytes from `start` on, as they come. Raises SourceAway and SourceRefuses."""
        ...


class BaseDownloads:
    """Downloads from one source."""

    def __init__(self, source: BaseSource) -> None:
        self._source = source
        self._hashed: dict[Path, tuple[int, hashlib._Hash]] = {}  # what is there, so that a retry need not read it again

    def fetch(self, file: BaseFile, path: Path, note: Callable[[int], None]) -> None:
        """Complete the file at `path`, where its beginning may lie already. `note` is called with the bytes of each block that
        is there, and may raise to end the download. Raises SourceAway, SourceRefuses, WrongBaseBytes and DiskFull."""
        with room_needed(path.parent):
            digest, size = self._present(path, file.bytes, note)
            if size < file.bytes:
                size = self._append(file, path, size, digest, note)
        if size != file.bytes or digest.hexdigest() != file.sha256:
            path.unlink()
            raise WrongBaseBytes(f"{file.path} of {self._source.holder} came with other bytes than the service pinned")

    def _present(self, path: Path, most: int, note: Callable[[int], None]) -> "tuple[hashlib._Hash, int]":
        """The hash and size of what is there; nothing is, where it is longer than it should be."""
        path.touch()
        if path.stat().st_size > most:
            path.write_bytes(b"")
        size, digest = self._hashed.pop(path, (0, hashlib.sha256()))
        if path.stat().st_size != size:
            size, digest = 0, hashlib.sha256()
        note(size)
        with path.open("rb") as kept:
            kept.seek(size)
            while block := kept.read(_BLOCK):
                digest.update(block)
                size += len(block)
                note(len(block))
        self._hashed[path] = size, digest.copy()
        return digest, size

    def _append(self, file: BaseFile, path: Path, size: int, digest: "hashlib._Hash", note: Callable[[int], None]) -> int:
        try:
            with closing(self._source.blocks(file, size)) as blocks, path.open("ab") as kept:
                for block in blocks:
                    kept.write(block)
                    digest.update(block)
                    size += len(block)
                    note(len(block))
                    if size > file.bytes:
                        break
        except SourceAway:
            self._hashed[path] = size, digest
            raise
        if size < file.bytes:
            raise SourceAway(f"{file.path} ended after {size} of {file.bytes} bytes")
        return size
