"""A local stack as a child process: runs `python -m deploy.devstack` and reads its JSON lines. Knows no terminal.

The child has its own session, so a Ctrl-C in the terminal reaches only this process. The child stops when asked, and when its
standard input closes, so that it never outlives a killed command line.
"""

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from motet.api.errors import MotetError

Event = Mapping[str, Any]


class StackFailed(MotetError):
    """The stack could not start, or ended by itself."""


@dataclass(frozen=True)
class Ready:
    """The stack's address. `attached`: it was already running and keeps running after this process exits. `instead_of_port`:
    the default port, if it was taken and the stack chose another."""

    api_url: str
    state_dir: Path
    attached: bool
    instead_of_port: int | None = None

    @property
    def moved(self) -> str | None:
        """That it chose another port, in a sentence."""
        if self.instead_of_port is None:
            return None
        return f"Port {self.instead_of_port} is taken by another program, so Motet is at {self.api_url}; --port chooses one."


class Stack:
    """A context manager: on exit the stack is stopped, or left running if this process only attached."""

    def __init__(self, arguments: list[str] | None = None) -> None:
        if find_spec("deploy") is None:
            raise StackFailed(
                "the local stack is not installed: this is the client alone\n"
                "  way out: set MOTET_API_URL and MOTET_API_KEY to use a running Motet, or run `make up` in a clone of Motet"
            )
        command = [sys.executable, "-P", "-m", "deploy.devstack", "--stop-on-eof", *(arguments or [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._complaints = ""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_events, self._read_complaints)]
        for reader in self._readers:
            reader.start()

    def events(self) -> Iterator[Event]:
        """The stack's events as they arrive, until it has ended. Raises StackFailed when it ends because of a failure."""
        while (event := self._events.get()) is not None:
            if event["event"] == "failed":
                raise StackFailed(f"the stack cannot run: {event['message']}\n  way out: {event['fix']}")
            yield event
        if code := self._process.wait():
            self._readers[1].join()
            said = self._complaints.strip().splitlines()[-1:] or ["it said nothing"]
            raise StackFailed(f"the stack ended with code {code}: {said[0]}")

    def ask_to_stop(self) -> None:
        """Ask the stack to stop; a second call makes it hurry."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Ask the stack to stop, and return once all its processes have ended."""
        self.ask_to_stop()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        self._complaints = self._process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def ready_of(event: Event) -> Ready | None:
    """The event's contents if it is the `ready` event."""
    if event["event"] != "ready":
        return None
    return Ready(event["api_url"], Path(event["state_dir"]), event["attached"], event.get("instead_of_port"))
