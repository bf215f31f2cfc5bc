"""What pins a base model: one sha256 over its safetensors files, for the service that lists it and the worker that loads it.

Knows nothing of what the files hold.
"""

import hashlib
from pathlib import Path


class NoWeights(ValueError):
    """The folder holds no safetensors files."""


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files by name. Raises NoWeights, and OSError where it cannot be read."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file())
    if not files:
        raise NoWeights(f"{folder} holds no *.safetensors files")
    return files


def revision_of(folder: Path) -> str:
    """sha256 over the sorted lines "<file name> <sha256 of the file>\\n", in lower-case hex. Raises as weight_files does."""
    whole = hashlib.sha256()
    for path in weight_files(folder):
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
