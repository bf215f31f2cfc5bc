"""`python -m worker`: the daemon of one node. Its children are `worker.node.heartbeat` and `worker.executor`."""

import os
import sys

from contract import reproducibility
from worker.node.daemon import serve
from worker.settings import SettingsError
from worker.stderr_logging import log_to_stderr
from worker.thread_guard import end_process_with_its_threads


def main() -> int:
    log_to_stderr()
    end_process_with_its_threads()
    reproducibility.turn_on(os.environ)  # executors inherit it
    try:
        return serve()
    except SettingsError as error:
        sys.stderr.write(f"motet worker: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
