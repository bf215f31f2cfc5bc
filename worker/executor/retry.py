"""Retries while the service is unreachable or the disk is full, for as long as a lease lasts."""

import logging
from collections.abc import Callable
from typing import TypeVar

from worker.api_client import Unreachable
from worker.data.disk_full import DiskFull
from worker.executor.placement.placement_lease import Lease

log = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 3.0


def persist(lease: Lease, what: str, attempt: Callable[[], T]) -> T:
    """Call `attempt` until the service is reachable and the disk has room; returns its result.

    Meanwhile the lease says that it waits for the disk. Raises LeaseNotHeld, and every other error of `attempt`.
    """
    try:
        return _persist(lease, what, attempt)
    finally:
        lease.note_wait(what, None)


def _persist(lease: Lease, what: str, attempt: Callable[[], T]) -> T:
    pause, failures = _FIRST_SECONDS, 0
    while True:
        lease.check()
        try:
            done = attempt()
        except (Unreachable, DiskFull) as error:
            full = isinstance(error, DiskFull)  # told to other tenants too: no folder, whose name holds a tenant and a file
            lease.note_wait(what, f"{what} waits for room in MOTET_WORKER_DIR" if full else None)
            failures += 1
            if failures == 1:
                log.warning("%s of placement %s failed and is retried: %s", what, lease.placement_id, error)
            lease.wait(pause)
            pause = min(2 * pause, _LONGEST_SECONDS)
        else:
            if failures:
                log.info("%s of placement %s succeeded after %d tries", what, lease.placement_id, failures + 1)
            return done
