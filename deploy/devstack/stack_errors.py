"""Errors of the user's machine, each with its fix. Knows no process and no server, only the ends of their logs."""

from pathlib import Path

_FIXES = (
    ("No space left on device", "the disk is full: free some space, or set MOTET_STATE_DIR to a folder on another disk"),
    ("Disk quota exceeded", "the disk quota is used up: free some space, or set MOTET_STATE_DIR to a folder elsewhere"),
    ("Read-only file system", "the file system is read-only: set MOTET_STATE_DIR to a folder that can be written"),
    ("Permission denied", "the folder belongs to somebody else: give it back to this user (chown -R), or set MOTET_STATE_DIR"),
    ("Operation not permitted", "the system forbids this to this user: run as an ordinary user, or allow user namespaces"),
    ("could not create shared memory", "shared memory is too small: give the machine or container a larger /dev/shm"),
    (
        "database files are incompatible with server",
        "the data is of another PostgreSQL version: set MOTET_STATE_DIR to a new folder",
    ),
    ("address already in use", "another program took the port meanwhile: start again, or leave the port out to get a free one"),
    ("Cannot allocate memory", "memory is used up: close something, or start with fewer workers"),
)
_TAIL_BYTES, _TAIL_LINES = 4000, 12


class StackError(Exception):
    """A problem that the user can fix. `fix` is one sentence; the CLI shows both."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message}\nfix: {fix}")
        self.message = message
        self.fix = fix


def tail(log: Path, start: int = 0) -> str:
    """The last lines of a log after byte `start`, at most 12; empty if there is no log."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(start, end - _TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").strip().splitlines()[-_TAIL_LINES:])


def died(name: str, how: str, log: Path, start: int = 0) -> StackError:
    """The error for a program that ended unexpectedly: the end of its log, and the fix if the cause is known."""
    words = tail(log, start)
    fix = next((fix for sign, fix in _FIXES if sign in words), f"read {log}")
    return StackError(f"{name} {how}. Its last words:\n{words or '(none)'}", fix)


def trouble_of(error: OSError) -> StackError:
    """The error for a failed system call on a file or folder."""
    text = error.strerror or str(error)
    fix = next((fix for sign, fix in _FIXES if sign == text), "set MOTET_STATE_DIR to a folder that can be written")
    return StackError(f"{error.filename}: {text}" if error.filename else text, fix)
