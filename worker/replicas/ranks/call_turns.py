"""Whose turn it is to call a rank: first come, first served. A lock of the interpreter would let the training loop, which calls
again at once, pass a thread that has waited for a whole window of steps."""

import threading


class CallTurns:
    """From any thread. A turn that was taken is given back by `release`, by the same thread or another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._served = 0  # numbers of turns

    def acquire(self) -> None:
        """Wait until all who came earlier had their turns."""
        with self._changed:
            mine, self._given = self._given, self._given + 1
            self._changed.wait_for(lambda: self._served == mine)

    def release(self) -> None:
        with self._changed:
            self._served += 1
            self._changed.notify_all()

    @property
    def awaited(self) -> bool:
        """Whether anybody waits while another has the turn."""
        with self._changed:
            return self._given > self._served + 1
