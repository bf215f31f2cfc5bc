"""One line a record, on standard error, with the time, the process and the room that speaks."""

import logging
import sys


def log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
