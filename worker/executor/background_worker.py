"""Threads that run callables beside the training loop: preparation, uploads."""

import queue
import threading
from collections.abc import Callable


class BackgroundWorker:
    """Runs callables in the order given, one after another or `at_once` of them. An exception ends the process, as in the loop:
    see training_loop.py."""

    def __init__(self, name: str, at_once: int = 1) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(at_once):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def drain(self, seconds: float) -> None:
        """Wait until what was given before is done, for so long at most. Of a worker that runs one at a time."""
        done = threading.Event()
        self.submit(done.set)
        done.wait(seconds)

    def _run(self) -> None:
        while True:
            self._work.get()()
