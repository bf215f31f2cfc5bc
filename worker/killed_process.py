"""Ends a child process for good, and waits for its end, but not for ever: it does not end while a system call of it hangs, in a
driver or a disk."""

import logging
import subprocess
from typing import Any

log = logging.getLogger(__name__)

SECONDS = 5.0
DEVICE_SECONDS = 30.0  # of one with a device: a driver takes seconds to free a whole one and what is pinned


def kill(process: "subprocess.Popen[Any]", name: str, seconds: float) -> bool:
    """Returns whether it has ended; what has not within so many seconds is left, which the log says. name: for messages."""
    process.kill()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        log.error(
            "%s (pid %d) was killed and has not ended within %.0f s: a system call of it hangs; it is left, and holds its "
            "memory and devices until that returns",
            name,
            process.pid,
            seconds,
        )
        return False
    return True
