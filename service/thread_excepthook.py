"""Thread excepthook: ends the process when an exception ends one of its threads, else it would look alive and do nothing.

It uses SIGKILL, so that the parent (prefork.py for API processes, otherwise a supervisor) starts a replacement.
"""

import logging
import os
import signal
import sys
import threading

log = logging.getLogger(__name__)


def end_process_with_its_threads() -> None:
    """Install the hook: an exception that a thread does not catch is logged and ends the process at once."""
    threading.excepthook = _thread_died


def _thread_died(args: threading.ExceptHookArgs) -> None:
    try:
        log.critical("thread %s died, and the process with it", args.thread and args.thread.name, exc_info=args.exc_value)
        for handler in logging.getLogger().handlers:
            handler.flush()  # lines that the log-writer thread has not written yet
        sys.stderr.flush()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
