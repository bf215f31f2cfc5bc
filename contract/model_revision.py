"""A base model by its content: its revision is one sha256 over its safetensors files, computed alike by the service and the
worker; its content key, by which nodes report what they hold, one over all of its files.

Knows no cache, no hub, and nothing of what the files hold.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_READERS = 8  # files read at once: a processor hashes 1 to 2 GB/s, so those of a base of 70B would take one a minute or more


class NoWeights(ValueError):
    """The folder holds no safetensors files."""


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, sorted by name. Raises NoWeights, and OSError if the folder cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file())
    if not files:
        raise NoWeights(f"{folder} holds no *.safetensors files")
    return files


def revision_of(folder: Path) -> str:
    """The revision of the weights in this folder, of which every byte is read. Raises NoWeights and OSError."""
    files = weight_files(folder)
    with ThreadPoolExecutor(min(_READERS, len(files))) as readers:  # hashing holds no lock of the interpreter
        return combined(zip((path.name for path in files), readers.map(_sha256_of, files), strict=True))


def combined(files: Iterable[tuple[str, str]]) -> str:
    """sha256, in lower-case hex, over the lines "<file name> <sha256 of the file>\\n" of these files, sorted by name."""
    whole = hashlib.sha256()
    for name, sha256 in sorted(files):
        whole.update(f"{name} {sha256}\n".encode())
    return whole.hexdigest()


def content_key(files: Iterable[tuple[str, str]]) -> str:
    """The base of these files, each a path and a sha256: sha256 over the lines "<path> <sha256>\\n", sorted by path."""
    return hashlib.sha256("".join(f"{path} {sha256}\n" for path, sha256 in sorted(files)).encode()).hexdigest()


def _sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:  # of a read it names no file
        raise OSError(error.errno, error.strerror, str(path)) from None
