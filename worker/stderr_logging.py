"""Logs to standard error, one line a record, with time, level, module and process id."""

import logging
import sys


def log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
