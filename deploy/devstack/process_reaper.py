"""Process reaper: finds and ends every process that carries a mark in its environment, in any session. Knows no stack.

As a program it waits until its standard input closes, which happens when its owner ends in any way, kill -9 included, and then
ends every process that carries the mark.
"""

import os
import signal
import sys
import time

MARK = "MOTET_STACK_KIN"
_POLL_SECONDS = 0.02  # polled: they are not our children, so no signal reports their end


def find(mark: str) -> list[int]:
    """Pids of processes whose mark is `mark` or starts with `mark` and a dot."""
    whole, start = f"{MARK}={mark}".encode(), f"{MARK}={mark}.".encode()
    return [
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdigit() and any(word == whole or word.startswith(start) for word in _environment(entry.name))
    ]


def kill(mark: str) -> int:
    """Kill the marked processes, and those they start meanwhile, until none is left. Returns how many there were."""
    killed: set[int] = set()
    while found := find(mark):
        for pid in found:
            send(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(_POLL_SECONDS)
    return len(killed)


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _environment(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:  # ended meanwhile, or owned by another user
        return []


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill(sys.argv[1])
