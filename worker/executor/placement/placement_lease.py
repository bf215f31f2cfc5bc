"""The lease of one placement in its executor: its deadline, and the token for requests.

Uses the boot clock, which runs on while this process is stopped. Any thread may ask; the thread on the daemon's pipe renews it.
"""

import threading

from worker.boot_clock import boot_now

_GRACE_SECONDS = 0.5  # how long a process that was stopped waits, idle, for renewals unread in its pipe


class LeaseNotHeld(Exception):
    """The executor may no longer act for the placement: its lease ran out, or was released."""


class Lease:
    def __init__(self, placement_id: str, fence: int, token: str, deadline: float) -> None:
        self.placement_id, self.fence = placement_id, fence
        self._token, self._deadline = token, deadline
        self._changed = threading.Condition()
        self._released = False
        self._waits: dict[str, str] = {}
        self.loading: str | None = None  # how far the fetching, then the loading, of its base is, in a sentence

    @property
    def waits_for(self) -> str | None:
        """What the placement's work waits for, in a sentence: room on the disk."""
        return next(iter(list(self._waits.values())), None)

    def note_wait(self, what: str, sentence: str | None) -> None:
        """Record what `what` waits for; None once it waits no more."""
        if sentence is None:
            self._waits.pop(what, None)
        else:
            self._waits[what] = sentence

    @property
    def token(self) -> str:
        return self._token

    @property
    def released(self) -> bool:
        """Whether it was released, rather than ran out."""
        return self._released

    def holds(self) -> bool:
        """Whether the executor may act for the placement. Past the deadline, waits briefly for a renewal in transit."""
        with self._changed:
            self._changed.wait_for(lambda: self._released or boot_now() < self._deadline, timeout=_GRACE_SECONDS)
            return not self._released and boot_now() < self._deadline

    def check(self) -> None:
        """Raise LeaseNotHeld unless the lease holds."""
        if not self.holds():
            raise LeaseNotHeld(f"the lease of placement {self.placement_id} has run out, or was released")

    def renew(self, deadline: float, token: str) -> None:
        with self._changed:
            self._deadline, self._token = max(self._deadline, deadline), token
            self._changed.notify_all()

    def release(self) -> None:
        """Give the lease up and wake all waiting threads."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises LeaseNotHeld if the lease has run out by then, or is released meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._released, timeout=min(seconds, max(0.0, self._deadline - boot_now())))
        self.check()
