"""A child of the daemon on a further host of its node: the same messages as of one here, over the connection by which it was
started. Times in them are on the boot clock of the host that reads them."""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import SecretStr, TypeAdapter, ValidationError

from contract.strict import Message
from worker.hosts.host_link import HostRefused, HostUnreachable
from worker.hosts.host_process import HostProcess
from worker.node.child_process import ChildEnded, ChildMessage
from worker.pipe_messages import Writer, read

log = logging.getLogger(__name__)

_END_SECONDS = 5.0  # for the agent to kill the process
_UNSEEN = -1  # the code of a process whose end is seen by its agent alone
_TIMES = ("deadline", "at")  # fields of messages, on the boot clock


class HostChild:
    """As child_process.Child. later: how many seconds later the other host's boot clock is, as of now."""

    def __init__(
        self,
        module: str,
        messages: TypeAdapter[Any],
        on_event: Callable[[ChildMessage | ChildEnded], None],
        address: str,
        secret: SecretStr,
        environment: Mapping[str, str],
        later: Callable[[], float],
    ) -> None:
        self.module, self.pid = module, 0
        self._messages, self._on_event, self._later = messages, on_event, later
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._process: HostProcess | None = None
        self._killed, self._ended, self._lock = False, threading.Event(), threading.Lock()
        run = (address, secret, environment)
        threading.Thread(target=self._run, args=run, name=f"{module} of {address}", daemon=True).start()

    @property
    def name(self) -> str:
        """For messages."""
        return self._process.name if self._process is not None else "not started yet"

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def send(self, message: Message) -> None:
        """Queue a message; returns at once."""
        self._outbox.put(shifted(message, self._later()))

    def kill(self) -> None:
        """Kill the process and wait for its end. ChildEnded still follows."""
        with self._lock:
            self._killed = True
            process = self._process
        if process is None:
            return
        process.kill()
        if not self._ended.wait(_END_SECONDS):
            log.error("the agent does not end %s; its connection is closed", process.name)
            with suppress(OSError):
                process.socket.shutdown(socket.SHUT_RDWR)

    def _run(self, address: str, secret: SecretStr, environment: Mapping[str, str]) -> None:
        try:
            process = HostProcess(address, secret, self.module, environment)
        except (HostUnreachable, HostRefused) as error:
            log.error("%s cannot be started: %s", self.module, error)
        else:
            self._follow(process)
        self._ended.set()
        self._on_event(ChildEnded(self, _UNSEEN))

    def _follow(self, process: HostProcess) -> None:
        with self._lock:
            self._process, self.pid = process, process.pid
            if self._killed:
                process.close(_END_SECONDS)
                return
        threading.Thread(target=self._write, args=(process,), name=f"{process.name} _write", daemon=True).start()
        try:
            for message in read(process.socket.fileno(), self._messages):
                self._on_event(ChildMessage(self, shifted(message, -self._later())))
        except ValidationError as error:
            log.error("unreadable message from %s; terminating it: %s", process.name, error)
        self._outbox.put(None)
        process.close(_END_SECONDS)

    def _write(self, process: HostProcess) -> None:
        with process.socket.makefile("wb") as file:
            writer = Writer(file)
            for message in iter(self._outbox.get, None):
                writer.write(message)


def shifted(message: Message, seconds: float) -> Message:
    """The message with its times so much later."""
    times = {name: getattr(message, name) + seconds for name in _TIMES if name in type(message).model_fields}
    return message.model_copy(update=times) if times else message
