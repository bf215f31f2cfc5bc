"""The lease of one placement in its executor: its deadline, and the token for requests.

Uses the boot clock, which runs on while this process is stopped. Any thread may ask; the thread on the daemon's pipe renews it.
"""

import threading

from worker.boot_clock import boot_now

_GRACE_SECONDS = 0.5  # how long a process that was stopped waits, idle, for renewals unread in its pipe


class LeaseOver(Exception):
    """The executor may no longer act for the placement: its lease ran out, or was ended."""


class Lease:
    def __init__(self, placement_id: str, fence: int, token: str, deadline: float) -> None:
        self.placement_id, self.fence = placement_id, fence
        self._token, self._deadline = token, deadline
        self._changed = threading.Condition()
        self._ended = False
        self._waits: dict[str, str] = {}

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
    def ended(self) -> bool:
        """Whether it was ended, rather than ran out."""
        return self._ended

    def holds(self) -> bool:
        """Whether the executor may act for the placement. Past the deadline, waits briefly for a renewal in transit."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or boot_now() < self._deadline, timeout=_GRACE_SECONDS)
            return not self._ended and boot_now() < self._deadline

    def check(self) -> None:
        """Raise LeaseOver unless the lease holds."""
        if not self.holds():
            raise LeaseOver(f"the lease of placement {self.placement_id} is over")

    def renew(self, deadline: float, token: str) -> None:
        with self._changed:
            self._deadline, self._token = max(self._deadline, deadline), token
            self._changed.notify_all()

    def end(self) -> None:
        """End the lease and wake all waiting threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait before a retry; raises LeaseOver if the lease is over by then, or is ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, timeout=min(seconds, max(0.0, self._deadline - boot_now())))
        self.check()
