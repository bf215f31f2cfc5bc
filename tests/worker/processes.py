"""Processes of this machine as /proc shows them, ours or not."""

import os
import select
from pathlib import Path


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command(pid: int) -> list[str]:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment(pid: int) -> dict[str, str]:
    """What the process was started with; nothing if it has ended."""
    try:
        words = (Path("/proc") / str(pid) / "environ").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)  # Postgres writes its title over what it was started with


def parent(pid: int) -> int | None:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def children(pid: int) -> list[int]:
    return [one for one in processes() if parent(one) == pid]


def gone(pid: int, seconds: float = 120.0) -> bool:
    """Wait until the process has ended; it need not be ours."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
