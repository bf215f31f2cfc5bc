"""Ends this process when the daemon does: reads commands from the daemon's pipe, and exits when it closes."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from pydantic import TypeAdapter

from worker.pipe_messages import read
from worker.thread_guard import end_process_with_its_threads

T = TypeVar("T")


def exit_with_parent(messages: TypeAdapter[T], handle: Callable[[T], None]) -> None:
    """Start a thread that passes each message on standard input to `handle`, and exits the process when the daemon closes the
    pipe.

    Ignores Ctrl-C, which the daemon handles. An uncaught exception in any thread ends the process, since the daemon acts only
    on a child's end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_process_with_its_threads()

    def follow() -> None:
        for message in read(sys.stdin.fileno(), messages):
            handle(message)
        os._exit(0)

    threading.Thread(target=follow, name="daemon's pipe", daemon=True).start()
