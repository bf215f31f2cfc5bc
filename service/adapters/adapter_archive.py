"""Streams an adapter's folder as a deterministic tar.gz: one block in memory, no temporary file."""

import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from contract.messages.adapter_manifest import AdapterFile
from service.storage.object_store import BLOCK, Storage

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 1  # weights hardly compress; higher levels only cost time


def tar_gz(
    storage: Storage, folder: str, files: Sequence[AdapterFile], mtime: int, texts: Mapping[str, bytes]
) -> Iterator[bytes]:
    """The archive in blocks: all files and `texts` (by name) inside `folder`, dated `mtime` (Unix seconds).

    Raises ObjectMissing before the first block.
    """
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    with ExitStack() as stack:
        sources = [stack.enter_context(storage.open(file.sha256)) for file in files]
        for file, source in zip(files, sources, strict=True):
            yield squeeze.compress(_header(f"{folder}/{file.path}", file.bytes, mtime))
            while block := source.read(BLOCK):
                yield squeeze.compress(block)
            yield squeeze.compress(b"\0" * (-file.bytes % tarfile.BLOCKSIZE))
        for name, text in texts.items():
            yield squeeze.compress(
                _header(f"{folder}/{name}", len(text), mtime) + text + b"\0" * (-len(text) % tarfile.BLOCKSIZE)
            )
        yield squeeze.compress(b"\0" * (2 * tarfile.BLOCKSIZE))  # the end-of-archive marker
        yield squeeze.flush()


def _header(name: str, size: int, mtime: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, mtime
    return entry.tobuf(tarfile.PAX_FORMAT)
