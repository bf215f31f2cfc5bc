"""Prefork server: a leader loads the app once and forks the members that serve requests; it serves none itself.

The leader replaces a member that was killed, forwards SIGTERM, and when it is killed its members end too.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_STOPS = (signal.SIGTERM, signal.SIGINT)
_READY_BYTE = {*_STOPS, signal.SIGCHLD}
_APART_SECONDS = 1.0  # least time between two starts of one member
_PATIENCE_SECONDS = 15.0  # between SIGTERM and SIGKILL


class Prefork:
    """The leader calls `lost` with the number of a member that has ended, before it starts a replacement. A member whose leader
    is gone calls `orphaned`, then kills itself."""

    def __init__(self, size: int, lost: Callable[[int], None], orphaned: Callable[[], None]) -> None:
        self._lost, self._orphaned = lost, orphaned
        self._due = dict.fromkeys(range(size), 0.0)  # members to start, and when
        self._members: dict[int, tuple[int, float]] = {}  # by process id: number, and when it was started
        self._parent_pipe, self._held = os.pipe()  # a member's read blocks until the leader's death closes the pipe

    def lead(self) -> int | None:
        """Fork the members. Returns in each member with its number, from 0, and in the leader with None, once it got a stop
        signal and all members have ended. The calling process must have a single thread. Raises SystemExit when a member
        exits with an error code: its replacement would too."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _READY_BYTE)
        while True:
            for number, due in list(self._due.items()):
                if due <= time.monotonic() and self._fork(number):
                    return number
            heard = self._read_ready()
            if heard in _STOPS:
                self._stop()
                return None
            for number, began, code in self._ended():
                if code > 0:
                    log.error("process %d ended with exit code %d", number, code)
                    self._stop()
                    sys.exit(code)
                log.warning("process %d ended (%d); another takes its place", number, code)
                self._lost(number)
                self._due[number] = began + _APART_SECONDS

    def _fork(self, number: int) -> bool:
        """Fork one member; True in the child."""
        del self._due[number]
        pid = os.fork()
        if pid != 0:
            self._members[pid] = number, time.monotonic()
            return False
        os.close(self._held)
        threading.Thread(target=self._exit_with_parent, name="parent-watchdog", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        return True

    def _exit_with_parent(self) -> None:
        os.read(self._parent_pipe, 1)
        self._orphaned()
        os.kill(os.getpid(), signal.SIGKILL)

    def _read_ready(self) -> int | None:
        """Wait for the next signal; None if a start is due first."""
        if not self._due:
            return signal.sigwaitinfo(_READY_BYTE).si_signo
        told = signal.sigtimedwait(_READY_BYTE, max(0.0, min(self._due.values()) - time.monotonic()))
        return told.si_signo if told is not None else None

    def _ended(self) -> list[tuple[int, float, int]]:
        """Reap members that have ended since the last call: number, start time, exit code (negative: the signal)."""
        found = []
        while self._members:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found.append((*self._members.pop(pid), os.waitstatus_to_exitcode(status)))
        return found

    def _stop(self) -> None:
        """Send SIGTERM to all members and wait; SIGKILL those that take too long."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + _PATIENCE_SECONDS
        while self._members:
            if signal.sigtimedwait({signal.SIGCHLD}, max(0.0, until - time.monotonic())) is None:
                self._signal(signal.SIGKILL)
                until = time.monotonic() + _PATIENCE_SECONDS
            self._ended()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._members:  # members not yet reaped keep their process ids, so no id is reused
            os.kill(pid, number)
