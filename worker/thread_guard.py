"""Ends the process when an exception kills one of its threads: a process that lost a thread looks alive and does nothing."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h


def end_process_with_its_threads() -> None:
    """Install a hook that logs any thread's uncaught exception and ends the process with EXIT_CODE."""
    threading.excepthook = _thread_died


@contextmanager
def threads_end_after() -> Iterator[None]:
    """The process ends by itself after the body: a thread from which something is taken that it uses is noted then, and ends no
    more than itself."""
    try:
        yield
    finally:
        threading.excepthook = _thread_ended


def _thread_died(args: threading.ExceptHookArgs) -> None:
    log.critical("thread %s died, and the process with it", args.thread and args.thread.name, exc_info=args.exc_value)
    os._exit(EXIT_CODE)


def _thread_ended(args: threading.ExceptHookArgs) -> None:
    log.info("thread %s ended with the process: %s", args.thread and args.thread.name, args.exc_value)
