"""The lease of one placement, as its executor holds it: until when it may act, and the token it speaks with.

Counted on the boot clock, which goes on while this process is stopped. Any thread may ask; the daemon's pipe renews.
"""

import threading

from worker.boot_clock import boot_now

_GRACE_SECONDS = 0.5  # a process that was held up waits so long for renewals that lie unread in its pipe, and does nothing


class LeaseOver(Exception):
    """The placement may act no more: its lease ran out, or it was ended."""


class Lease:
    def __init__(self, placement_id: str, fence: int, token: str, deadline: float) -> None:
        self.placement_id, self.fence = placement_id, fence
        self._token, self._deadline = token, deadline
        self._changed = threading.Condition()
        self._ended = False

    @property
    def token(self) -> str:
        return self._token

    @property
    def ended(self) -> bool:
        """Whether it was ended, rather than ran out."""
        return self._ended

    def holds(self) -> bool:
        """Whether the placement may act. If its time is over, a renewal that is on its way is waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or boot_now() < self._deadline, timeout=_GRACE_SECONDS)
            return not self._ended and boot_now() < self._deadline

    def check(self) -> None:
        """Raise LeaseOver unless the placement may act."""
        if not self.holds():
            raise LeaseOver(f"the lease of placement {self.placement_id} is over")

    def renew(self, deadline: float, token: str) -> None:
        with self._changed:
            self._deadline, self._token = max(self._deadline, deadline), token
            self._changed.notify_all()

    def end(self) -> None:
        """Nothing is to be done under it any more. Wakes who waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait before another try; raises LeaseOver if the lease is over by then, or is ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, timeout=min(seconds, max(0.0, self._deadline - boot_now())))
        self.check()
