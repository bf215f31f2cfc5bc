"""Ends the process when one of its threads dies of an exception: half a process looks alive and does nothing.

It ends as if killed, so that whatever watches over it (prefork.py for the API's processes, else a supervisor) starts another.
"""

import logging
import os
import signal
import sys
import threading

log = logging.getLogger(__name__)


def end_process_with_its_threads() -> None:
    """From now on an exception that a thread does not catch is logged and ends the process at once."""
    threading.excepthook = _thread_died


def _thread_died(args: threading.ExceptHookArgs) -> None:
    try:
        log.critical("thread %s died, and the process with it", args.thread and args.thread.name, exc_info=args.exc_value)
        for handler in logging.getLogger().handlers:
            handler.flush()  # lines that a thread of their own was about to write
        sys.stderr.flush()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
