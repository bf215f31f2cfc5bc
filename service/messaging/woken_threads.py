"""Background threads that do their work each time that they are woken."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)


class WokenThreads(ABC):
    name: ClassVar[str]
    put_off: ClassVar[str]  # said where `run_due` fails, before the reason: "tasks are validated later"
    at_once: ClassVar[int] = 1  # threads

    def __init__(self) -> None:
        self._due, self._stopping = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    @abstractmethod
    def run_due(self) -> object:
        """Do what is due."""

    def wake(self) -> None:
        """Look for work in the background, once more where it is at work; threads that died are replaced."""
        self._due.set()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while len(self._threads) < self.at_once and not self._stopping.is_set():
            self._threads.append(threading.Thread(target=self._work, name=self.name, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ask the threads to end; returns at once."""
        self._stopping.set()
        self._due.set()

    def close(self, seconds: float = 5.0) -> None:
        """Stop, and wait for the threads at most so many seconds."""
        self.stop()
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._stopping.is_set():
                self._due.set()  # for the other threads
                return
            try:
                self.run_due()
            except (SQLAlchemyError, OSError) as error:  # storage's errors are among the latter
                log.error("%s: %s", self.put_off, error)
