"""A child process of the daemon that exchanges messages with it. Knows neither what it runs nor what the messages mean.

The daemon's main loop never blocks on a child: a writer thread sends, since a stopped process does not read its pipe. Children
exit when their standard input closes, so none outlives the daemon, kill -9 included.
"""

import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from contract.strict import Message
from worker import killed_process
from worker.parent_watchdog import dying_with_parent
from worker.pipe_messages import Writer, read

log = logging.getLogger(__name__)

NO_CODE = -1  # of a process that was not started, or whose end another host's agent alone sees


class AnyChild(Protocol):
    """A child here (Child) or on a further host of the node (host_child.HostChild)."""

    module: str

    @property
    def pid(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    def send(self, message: Message) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class ChildMessage:
    """A message from a child."""

    child: AnyChild
    message: Any


@dataclass(frozen=True)
class ChildEnded:
    """A child has exited; `code` is negative for a signal. why: what is known instead, where that is NO_CODE. started: whether
    it ever ran."""

    child: AnyChild
    code: int
    why: str | None = None
    started: bool = True


class Child:
    """`python -m module`, started at once, from the main thread.

    A reader thread calls `on_event` with every ChildMessage and, last, ChildEnded. Where the system starts no more processes or
    threads, who makes it calls that with ChildEnded alone: the daemon and its other children go on.
    """

    def __init__(self, module: str, messages: TypeAdapter[Any], on_event: Callable[[ChildMessage | ChildEnded], None]) -> None:
        self.module = module
        self._messages = messages
        self._on_event = on_event
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                [*dying_with_parent(), sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for work in (self._write, self._read):  # the reader last: it tells the end
                threading.Thread(target=work, args=(self._process,), name=f"{module} {work.__name__}", daemon=True).start()
        except (OSError, RuntimeError) as error:
            self._give_up(f"could not be started: {error}")

    def _give_up(self, why: str) -> None:
        log.error("%s %s", self.module, why)
        if self._process is not None:
            self.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            killed_process.kill(self._process, self.module, killed_process.SECONDS)
        self._on_event(ChildEnded(self, NO_CODE, why, started=False))

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"pid {self.pid}" if self._process is not None else "no process"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, message: Message) -> None:
        """Queue a message; returns at once."""
        self._outbox.put(message)

    def kill(self) -> None:
        """Kill the process; returns at once. ChildEnded follows, only when a hanging system call of it lets go (a driver's, a
        disk's)."""
        if self._process is not None:
            self._process.kill()
        self._outbox.put(None)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            for message in read(process.stdout.fileno(), self._messages):
                self._on_event(ChildMessage(self, message))
        except ValidationError as error:
            log.error("unreadable message from %s (pid %d); terminating it: %s", self.module, self.pid, error)
            process.kill()
        self._on_event(ChildEnded(self, process.wait()))

    def _write(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        writer = Writer(process.stdin)
        for message in iter(self._outbox.get, None):
            writer.write(message)
        try:
            process.stdin.close()
        except BrokenPipeError:
            return
