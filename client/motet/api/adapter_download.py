"""Downloads an adapter's folder: each file is checked against its sha256, and the folder appears complete or not at all.

Knows the manifest and the transport. Knows no file formats.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

from contract.adapter_manifest import AdapterFile
from motet.api.errors import ApiError, DownloadDamaged, MotetError
from motet.api.resources import Adapter
from motet.api.transport import Transport

README = "README.md"


def download(transport: Transport, adapter: Adapter, folder: Path) -> Path:
    """Write the adapter's files to `folder`, which must not exist yet or be empty. Returns the folder.

    Raises DownloadDamaged where a sha256 differs, MotetError where `folder` holds something else.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if _holds(folder, adapter.files):
            return folder
        raise MotetError(f"{folder} exists and is not this adapter; name another folder, or remove it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise MotetError(f"cannot write to {folder.parent}: {error.strerror}; name another folder") from error
    try:
        for file in adapter.files:
            _fetch(transport, adapter, file, draft / file.path)
        _fetch_readme(transport, adapter, draft)
        draft.chmod(0o755)
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _fetch(transport: Transport, adapter: Adapter, file: AdapterFile, path: Path) -> None:
    digest = hashlib.sha256()
    with transport.stream(f"/v1/adapters/{adapter.id}/files/{file.path}") as blocks, path.open("wb") as out:
        for block in blocks:
            digest.update(block)
            out.write(block)
    if digest.hexdigest() != file.sha256:
        found = f"its sha256 is {digest.hexdigest()}, the manifest says {file.sha256}"
        raise DownloadDamaged(f"{file.path} of {adapter.id} arrived damaged: {found}; download it again")


def _fetch_readme(transport: Transport, adapter: Adapter, draft: Path) -> None:
    """Fetch the README, which the service writes once the task has ended; before that there is none."""
    if any(file.path == README for file in adapter.files):
        return
    try:
        with transport.stream(f"/v1/adapters/{adapter.id}/files/{README}") as blocks:
            (draft / README).write_bytes(b"".join(blocks))
    except ApiError as error:
        if error.status != 404:  # not written yet
            raise


def _holds(folder: Path, files: list[AdapterFile]) -> bool:
    """Whether the folder already holds exactly these files."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {README} != {file.path for file in files} - {README}:
        return False
    return all(hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256 for file in files)
