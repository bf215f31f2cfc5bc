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


def exit_with_parent(messages: TypeAdapter[T], obey: Callable[[T], None]) -> None:
    """From now on a thread hands every message of standard input to `obey`; at its end the daemon is gone, and so are we.

    Ctrl-C is the daemon's business. A thread that dies takes the process with it: half a child is none, and the daemon acts
    on a child's end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_process_with_its_threads()

    def follow() -> None:
        for message in read(sys.stdin.fileno(), messages):
            obey(message)
        os._exit(0)

    threading.Thread(target=follow, name="daemon's pipe", daemon=True).start()
