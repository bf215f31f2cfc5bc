"""The boot clock: it runs on while a process is stopped or the machine sleeps, and cannot be set. Leases use it."""

import time


def boot_now() -> float:
    """Seconds since this machine booted, sleep included; the same number in every process of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
