"""A background thread that does its work each time that it is woken."""

import logging
import threading
from abc import ABC, abstractmethod
from typing import ClassVar

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)


class WokenThread(ABC):
    name: ClassVar[str]
    put_off: ClassVar[str]  # said where `run_due` fails, between name and reason: "tasks are validated later"

    def __init__(self) -> None:
        self._due, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run_due(self) -> object:
        """Do what is due."""

    def wake(self) -> None:
        """Look for work in the background, once more where it is at work; a thread that died is replaced."""
        self._due.set()
        if (self._thread is None or not self._thread.is_alive()) and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stopping.set()
        self._due.set()

    def close(self, seconds: float = 5.0) -> None:
        """Stop, and wait for the thread at most so many seconds."""
        self.stop()
        if self._thread is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._due.wait()
            self._due.clear()
            if self._stopping.is_set():
                return
            try:
                self.run_due()
            except (SQLAlchemyError, OSError) as error:  # storage's errors are among the latter
                log.error("%s: %s: %s", self.name, self.put_off, error)
