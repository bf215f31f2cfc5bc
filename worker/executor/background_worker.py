"""Threads that run callables beside the training loop: preparations, uploads."""

import queue
import threading
from collections.abc import Callable


class BackgroundWorker:
    """Runs callables in the order given, one after another or `at_once` of them; None: each at once, as they come. An exception
    ends the process, as in the loop: see training_loop.py. Its threads stay, since child processes end with the thread that
    started them (parent_watchdog.py)."""

    def __init__(self, name: str, at_once: int | None = 1) -> None:
        self._name, self._grows = name, at_once is None
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock, self._free = threading.Lock(), 0  # threads that wait for work, less what waits for a thread
        for _ in range(at_once or 0):
            self._start()

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._free -= 1
            grow = self._grows and self._free < 0
        if grow:
            self._start()
        self._work.put(work)

    def drain(self, seconds: float) -> None:
        """Wait until what was given before is done, for so long at most. Of a worker that runs one at a time."""
        done = threading.Event()
        self.submit(done.set)
        done.wait(seconds)

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._free += 1
            self._work.get()()
