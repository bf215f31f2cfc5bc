"""The boot clock: it goes on while a process is stopped or the machine sleeps, and no one sets it. Leases are counted on it."""

import time


def boot_now() -> float:
    """Seconds since this machine booted, sleep included; the same number in every process of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
