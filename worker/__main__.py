"""`python -m worker`: the daemon of one node. Its children are `worker.heartbeat` and `worker.executor`."""

import sys

from worker.daemon import serve
from worker.logs import log_to_stderr
from worker.settings import SettingsError


def main() -> int:
    log_to_stderr()
    try:
        return serve()
    except SettingsError as error:
        sys.stderr.write(f"motet worker: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
