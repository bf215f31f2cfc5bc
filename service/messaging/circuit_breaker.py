"""Circuit breaker: after a failed call it refuses further calls at once, except one trial call in each interval.

Knows nothing of what is called. Any thread may use it.
"""

import threading
import time

SECONDS = 5.0


class CircuitBreaker:
    """Closed: every caller may call. Open: one caller per `seconds` may; its result closes the breaker or keeps it open."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._open = False
        self._try_at = 0.0
        self._lock = threading.Lock()

    def allows(self) -> bool:
        """Whether the caller may call now; it must then report `failed` or `succeeded`."""
        if not self._open:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._try_at:
                return False
            self._try_at = now + self._seconds  # other callers are refused until this trial ends
            return True

    def failed(self) -> None:
        with self._lock:
            self._open, self._try_at = True, time.monotonic() + self._seconds

    def succeeded(self) -> None:
        self._open = False
