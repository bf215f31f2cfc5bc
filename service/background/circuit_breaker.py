"""A circuit breaker: after a call that took its whole timeout, callers are told at once not to try, and now and then one tries.

Knows nothing of what is called. Any thread may use it.
"""

import threading
import time

SECONDS = 5.0


class CircuitBreaker:
    """Closed, all may call. Open, one caller in `seconds` may; what comes of that closes it or keeps it open."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._open = False
        self._try_at = 0.0
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether the caller may call now, and then says what came of it."""
        if not self._open:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._try_at:
                return False
            self._try_at = now + self._seconds  # the others wait for what comes of this one
            return True

    def failed(self) -> None:
        with self._lock:
            self._open, self._try_at = True, time.monotonic() + self._seconds

    def succeeded(self) -> None:
        self._open = False
