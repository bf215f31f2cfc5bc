"""Private folders and files, and folders with paths short enough for unix sockets. Knows nothing of their contents."""

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

from deploy.devstack.stack_errors import StackError, trouble_of

# a socket's path has 107 bytes; the longest name in the folder is ".s.PGSQL.5432.lock"
_LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.5432.lock")

_PLAIN = re.compile(r"[\w./@+-]+", re.ASCII)


def private_folder(path: Path, mode: int = 0o700) -> Path:
    """Make `path` (and its parents), with exactly `mode`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if stat.S_IMODE(path.stat().st_mode) != mode:
            path.chmod(mode)
    except OSError as error:
        raise trouble_of(error) from error
    return path


def private_file(path: Path, text: str) -> Path:
    """Write `path` atomically, mode 600."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise trouble_of(error) from error
    return path


def socket_folder(wanted: Path, owners: set[int]) -> Path:
    """`wanted`; or a folder named after it in the temporary folder, if its path is too long for a socket or contains a
    character that the servers' options split at."""
    if len(os.fsencode(wanted)) <= _LONGEST_SOCKET_FOLDER and _PLAIN.fullmatch(str(wanted)):
        return private_folder(wanted)
    name = f"motet-{os.geteuid()}-{hashlib.sha256(os.fsencode(wanted)).hexdigest()[:12]}"
    folder = Path(tempfile.gettempdir(), name)
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        folder = Path("/tmp", name)
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid not in owners):
        raise StackError(
            f"{folder} belongs to somebody else", "remove it, or set MOTET_STATE_DIR to a folder with a shorter path"
        )
    return private_folder(folder)
