"""Threads that run callables beside the training loop: preparations, uploads."""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class BackgroundWorker:
    """Runs callables in the order given, one after another or `at_once` of them; None: each at once, as they come, unless the
    system starts no more threads: then they wait for those that are there. An exception ends the process (thread_guard.py). Its
    threads stay, since child processes end with the thread that started them (parent_watchdog.py)."""

    def __init__(self, name: str, at_once: int | None = 1) -> None:
        self._name, self._grows = name, at_once is None
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock, self._free = threading.Lock(), 0  # threads that wait for work, less what waits for a thread
        for _ in range(at_once or 1):  # one that grows has one from the start: work that waits is never without any
            self._start()

    def submit(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._free -= 1
            try:
                while self._grows and self._free < 0:
                    self._start()
            except RuntimeError as error:
                log.warning("%s: work waits for a thread that is free, since the system starts no more: %s", self._name, error)
        self._work.put(work)

    def drain(self, seconds: float) -> None:
        """Wait until what was given before is done, for so long at most. Of a worker that runs one at a time."""
        done = threading.Event()
        self.submit(done.set)
        done.wait(seconds)

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._free += 1

    def _run(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._free += 1
