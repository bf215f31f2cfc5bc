"""What other threads have for the training loop to run."""

import queue
from collections import deque
from collections.abc import Callable

from worker.boot_clock import boot_now

Callback = Callable[[], None]

# between the loop's rounds while tasks step together: what is patient is run, and it is asked again who takes part, since their
# urgencies change slowly
ROUND_SECONDS = 5.0


class Inbox:
    """Callbacks in the order in which they were put, by any thread or signal handler; the loop alone takes them out.

    While devices are given step after step the loop looks at nothing: `waits` says when it is to. Each such stop leaves the
    devices without work for a moment, so what need not be told at once is put as patient.
    """

    def __init__(self) -> None:
        # no lock: a signal's handler puts while its own thread may be at any line here
        self._callbacks: deque[tuple[float, Callback]] = deque()  # each with when the loop is to stop for it
        self._there: queue.SimpleQueue[None] = queue.SimpleQueue()  # as many as there are callbacks

    def put(self, callback: Callback, patient: bool = False) -> None:
        """patient: the loop need not stop for it, but for so long."""
        self._callbacks.append((boot_now() + (ROUND_SECONDS if patient else 0.0), callback))
        self._there.put(None)

    def get(self, timeout: float = 0.0) -> Callback:
        """The next one. Raises queue.Empty where none comes within so many seconds."""
        self._there.get(timeout=timeout)
        return self._callbacks.popleft()[1]

    @property
    def waits(self) -> bool:
        """Whether the loop is to stop for one of them."""
        now = boot_now()
        return any(now >= due for due, _ in tuple(self._callbacks))
