"""Ends the process when one of its threads dies of an exception: half a process looks alive and does nothing."""

import logging
import os
import threading

log = logging.getLogger(__name__)

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h


def end_process_with_its_threads() -> None:
    """From now on an exception that a thread does not catch is logged and ends the process at once."""
    threading.excepthook = _thread_died


def _thread_died(args: threading.ExceptHookArgs) -> None:
    log.critical("thread %s died, and the process with it", args.thread and args.thread.name, exc_info=args.exc_value)
    os._exit(EXIT_CODE)
