"""`python -m worker`: the daemon of one node. Its children are `worker.node.heartbeat` and `worker.executor`."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError

from contract.processes import reproducibility
from worker.node.daemon import Daemon
from worker.pinned_memory import allocate_by_threads
from worker.settings import Settings, SettingsError
from worker.stderr_logging import log_to_stderr
from worker.thread_guard import end_process_with_its_threads

_LOCK = "daemon.lock"


def main() -> int:
    log_to_stderr()
    end_process_with_its_threads()
    reproducibility.turn_on(os.environ)  # executors inherit both
    allocate_by_threads(os.environ)
    try:
        settings = Settings.load()
        with _own_scratch(settings):
            os.environ.setdefault("TRITON_CACHE_DIR", str(settings.scratch / "kernels"))  # outlast a container, as bases do
            return Daemon(settings).run()
    except PackageNotFoundError as error:
        sys.stderr.write(f"motet worker: the package {error.name} is not installed; run: pip install 'motet[worker]'\n")
        return 2
    except SettingsError as error:
        sys.stderr.write(f"motet worker: {error}\n")
        return 2


@contextmanager
def _own_scratch(settings: Settings) -> Iterator[None]:
    """Make the node's folder, and lock it: of two daemons that join by one credential, each join is the other's end."""
    scratch = settings.scratch
    try:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (scratch / _LOCK).open("w")
    except OSError as error:
        raise SettingsError(f"MOTET_WORKER_DIR: cannot write to {scratch}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"MOTET_NODE_NAME: a worker named {settings.node_name} already runs in {scratch}; stop it, or give this one "
                "another name"
            ) from None
        except OSError as error:
            raise SettingsError(f"MOTET_WORKER_DIR: cannot lock {scratch / _LOCK}: {error.strerror}") from None
        yield


if __name__ == "__main__":
    sys.exit(main())
