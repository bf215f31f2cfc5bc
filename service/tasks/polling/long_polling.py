"""Waits for task changes: one LISTEN connection per API process, and an asyncio event for each waiting request.

A waiting request holds neither a thread nor a database connection. Knows no task beyond its id and version.
"""

import asyncio
import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import psycopg

from service.database.engine import CHANNEL, CONNECT, driver_url
from service.database.timeouts import Connection, Timeouts

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class ChangeListener:
    """Listens in its own thread and sets events on one asyncio loop."""

    def __init__(self, database_url: str, timeouts: Timeouts = Timeouts()) -> None:  # noqa: B008  (frozen)
        self._url, self._timeouts = driver_url(database_url), timeouts
        self._events: dict[str, set[asyncio.Event]] = {}  # used on the event loop only
        self._callbacks: list[Callable[[Iterable[str]], None]] = []
        self.heard = 0  # notices so far, of any task; a read that begins now includes what they announced
        self._stopping = threading.Event()
        self.listening = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start listening. While Postgres is unreachable it retries, and waiting requests run into their timeout."""
        self._loop = loop
        self._released = asyncio.Event()
        self._wake_r, self._wake_w = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="change-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake_w.send(b"\0")
        self._thread.join()
        self._wake_r.close()
        self._wake_w.close()

    def release(self) -> None:
        """Wake every waiting request, for a shutdown. Safe from any thread and from signal handlers."""
        self._loop.call_soon_threadsafe(self._release)

    def on_change(self, of: Callable[[Iterable[str]], None]) -> None:
        """Register `of`, a callback that runs on the loop with the ids of changed tasks. Notices can be missed."""
        self._callbacks.append(of)

    @contextmanager
    def watch(self, *task_ids: str) -> Iterator[asyncio.Event]:
        """An event that is set after each committed change of any of the tasks. Enter it before reading them, to miss none."""
        event = asyncio.Event()
        for task_id in task_ids:
            self._events.setdefault(task_id, set()).add(event)
        if self._released.is_set():
            event.set()
        try:
            yield event
        finally:
            for task_id in task_ids:
                self._events[task_id].discard(event)
                if not self._events[task_id]:
                    del self._events[task_id]

    @property
    def released(self) -> bool:
        """Whether the process is about to stop, so that nobody should wait any longer."""
        return self._released.is_set()

    def _release(self) -> None:
        self._released.set()
        self._wake_all()

    def _wake(self, task_ids: Iterable[str]) -> None:
        self.heard += 1
        for told in self._callbacks:
            told(task_ids)
        for task_id in task_ids:
            for event in self._events.get(task_id, ()):
                event.set()

    def _wake_all(self) -> None:
        self._wake(self._events)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with Connection.connect(self._url, autocommit=True, options=self._timeouts.options, **CONNECT) as connection:
                    connection.answer_seconds = self._timeouts.answer
                    connection.execute(f"LISTEN {CHANNEL}")
                    self.listening.set()
                    self._loop.call_soon_threadsafe(self._wake_all)  # for changes committed while not listening
                    self._listen(connection)
            except psycopg.OperationalError as error:
                log.warning("the change listener lost Postgres and will reconnect: %s", str(error).strip())
            self.listening.clear()
            self._stopping.wait(_RETRY_SECONDS)

    def _listen(self, connection: psycopg.Connection) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_r, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                told = [task_id for notice in connection.notifies(timeout=0) for task_id in notice.payload.split()]
                if told:
                    self._loop.call_soon_threadsafe(self._wake, told)
