"""Ends a process when its parent does: it reads commands from its parent's pipe, and exits when that closes."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from pydantic import TypeAdapter

from worker.pipe_messages import read
from worker.thread_guard import end_process_with_its_threads

T = TypeVar("T")


def dying_with_parent() -> list[str]:
    """Command prefix that kills a child when the thread that started it ends: imports take seconds before the child reads its
    pipe, and one that is stopped (SIGSTOP) reads nothing."""
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "KILL", "--"] if tool else []


def exit_with_parent(messages: TypeAdapter[T], handle: Callable[[T], None]) -> None:
    """Start a thread that passes each message on standard input to `handle`, and exits the process when the parent closes the
    pipe.

    Ignores Ctrl-C, which the daemon handles. An uncaught exception in any thread ends the process, since a parent acts only
    on a child's end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_process_with_its_threads()

    def follow() -> None:
        for message in read(sys.stdin.fileno(), messages):
            handle(message)
        os._exit(0)

    threading.Thread(target=follow, name="parent's pipe", daemon=True).start()
