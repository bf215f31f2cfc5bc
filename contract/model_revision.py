"""A base model's revision: one sha256 over its safetensors files, computed alike by the service and the worker.

Knows nothing of the files' contents.
"""

import hashlib
from pathlib import Path


class NoWeights(ValueError):
    """The folder holds no safetensors files."""


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, sorted by name. Raises NoWeights, and OSError if the folder cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file())
    if not files:
        raise NoWeights(f"{folder} holds no *.safetensors files")
    return files


def revision_of(folder: Path) -> str:
    """sha256 over the sorted lines "<file name> <sha256 of the file>\\n", in lower-case hex. Raises NoWeights and OSError, as
    weight_files does."""
    whole = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
