"""A thread that runs callables one after another beside the training loop: preparation, uploads."""

import queue
import threading
from collections.abc import Callable


class BackgroundWorker:
    """Runs callables in the order given. An exception ends the process, as in the loop: see training_loop.py."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def _run(self) -> None:
        while True:
            self._work.get()()
