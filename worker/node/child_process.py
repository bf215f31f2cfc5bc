"""A child process of the daemon, spoken to in messages. Knows neither what it runs nor what is said.

The daemon's main loop never waits for a child: what it sends goes through a thread, since a stopped process does not read.
Children end when their standard input closes, so none outlives the daemon, kill -9 included.
"""

import logging
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from contract.strict import Message
from worker.pipe_messages import Writer, read

log = logging.getLogger(__name__)


def _dying_with_us() -> list[str]:
    """What ends a child that is not yet reading its pipe (an import takes seconds) when the thread that started it ends."""
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "KILL", "--"] if tool else []


@dataclass(frozen=True)
class News:
    """A child said something."""

    child: "Child"
    message: Any


@dataclass(frozen=True)
class ChildEnded:
    """A child is gone; `code` is negative for a signal."""

    child: "Child"
    code: int


class Child:
    """`python -m module`, started at once, from the main thread.

    `tell` is called from another thread with every News and, last, ChildEnded.
    """

    def __init__(self, module: str, messages: TypeAdapter[Any], tell: Callable[[News | ChildEnded], None]) -> None:
        self.module = module
        self._messages = messages
        self._tell = tell
        self._process = subprocess.Popen(
            [*_dying_with_us(), sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, name=f"{module} {work.__name__}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Message) -> None:
        """Say something; returns at once."""
        self._outbox.put(message)

    def kill(self) -> None:
        """End it and see it gone. ChildEnded still comes."""
        self._process.kill()
        self._outbox.put(None)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for message in read(self._process.stdout.fileno(), self._messages):
                self._tell(News(self, message))
        except ValidationError as error:
            log.error("%s (pid %d) said what nobody understands, and is ended: %s", self.module, self.pid, error)
            self._process.kill()
        self._tell(ChildEnded(self, self._process.wait()))

    def _write(self) -> None:
        assert self._process.stdin is not None
        writer = Writer(self._process.stdin)
        for message in iter(self._outbox.get, None):
            writer.write(message)
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return
