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
from worker.node.child_process import NO_CODE, ChildEnded, ChildMessage
from worker.pipe_messages import Writer, read

log = logging.getLogger(__name__)

_END_SECONDS = 5.0  # for the agent to kill the process, after which its connection is closed
_TIMES = ("deadline", "at")  # fields of messages, on the boot clock


class HostChild:
    """As child_process.Child. clock_offset: how many seconds later the other host's boot clock is, as of now."""

    def __init__(
        self,
        module: str,
        messages: TypeAdapter[Any],
        on_event: Callable[[ChildMessage | ChildEnded], None],
        address: str,
        secret: SecretStr,
        environment: Mapping[str, str],
        clock_offset: Callable[[], float],
    ) -> None:
        self.module, self.pid, self._address = module, 0, address
        self._messages, self._on_event, self._clock_offset = messages, on_event, clock_offset
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._process: HostProcess | None = None
        self._started, self._killed = True, False
        self._ended, self._lock = threading.Event(), threading.Lock()
        run = (secret, environment)
        try:
            threading.Thread(target=self._run, args=run, name=f"{module} of {address}", daemon=True).start()
        except RuntimeError as error:
            self._over(self._not_started(error))

    @property
    def name(self) -> str:
        """For messages."""
        return self._process.name if self._process is not None else f"starting at {self._address}"

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def send(self, message: Message) -> None:
        """Queue a message; returns at once."""
        self._outbox.put(shifted(message, self._clock_offset()))

    def kill(self) -> None:
        """Have the agent kill the process; returns at once. ChildEnded follows, also where no agent answers any more: then the
        process ends as its agent notices that the node is gone."""
        with self._lock:
            self._killed, process = True, self._process
        if process is not None:
            self._end(process)

    def _end(self, process: HostProcess) -> None:
        process.kill()
        try:
            threading.Thread(target=self._cut_off, args=(process,), name=f"{process.name} end", daemon=True).start()
        except RuntimeError:  # then nobody waits for the agent
            self._cut_off(process, 0.0)

    def _cut_off(self, process: HostProcess, seconds: float = _END_SECONDS) -> None:
        if not self._ended.wait(seconds):
            log.error("the agent does not end %s; its connection is closed", process.name)
            with suppress(OSError):
                process.socket.shutdown(socket.SHUT_RDWR)

    def _run(self, secret: SecretStr, environment: Mapping[str, str]) -> None:
        try:
            process = HostProcess(self._address, secret, self.module, environment)
        except (HostUnreachable, HostRefused) as error:
            self._over(self._not_started(error))
        else:
            self._over(self._follow(process))

    def _not_started(self, error: Exception) -> str:
        self._started, why = False, f"could not be started: {error}"
        log.error("%s %s", self.module, why)
        return why

    def _over(self, why: str) -> None:
        self._ended.set()
        self._on_event(ChildEnded(self, NO_CODE, why, self._started))

    def _follow(self, process: HostProcess) -> str:
        """Returns how it ended."""
        why = "ended, or its host is lost"
        with self._lock:
            self._process, self.pid, killed = process, process.pid, self._killed
        if killed:
            self._end(process)
        try:
            threading.Thread(target=self._write, args=(process,), name=f"{process.name} write", daemon=True).start()
        except RuntimeError as error:
            why = self._not_started(error)
        else:
            self._read(process)
        self._outbox.put(None)
        process.close(_END_SECONDS)
        return why

    def _read(self, process: HostProcess) -> None:
        try:
            for message in read(process.socket.fileno(), self._messages):
                self._on_event(ChildMessage(self, shifted(message, -self._clock_offset())))
        except ValidationError as error:
            log.error("unreadable message from %s; terminating it: %s", process.name, error)

    def _write(self, process: HostProcess) -> None:
        writer = Writer(_Connection(process.socket))
        for message in iter(self._outbox.get, None):
            writer.write(message)


class _Connection:
    """A socket as a file that writes all it is given at once."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def write(self, line: bytes) -> None:
        self._end.sendall(line)

    def flush(self) -> None:
        """Nothing is held back."""


def shifted(message: Message, seconds: float) -> Message:
    """The message with its times so much later."""
    times = {name: getattr(message, name) + seconds for name in _TIMES if name in type(message).model_fields}
    return message.model_copy(update=times) if times else message
