"""`python -m worker`: the daemon of one node. Its children are `worker.node.heartbeat` and `worker.executor`."""

import os
import sys
from importlib.metadata import PackageNotFoundError

from contract.processes import reproducibility
from worker.node.daemon import Daemon
from worker.pinned_memory import allocate_by_threads
from worker.settings import Settings, SettingsError
from worker.stderr_logging import log_to_stderr
from worker.thread_guard import end_process_with_its_threads


def main() -> int:
    log_to_stderr()
    end_process_with_its_threads()
    reproducibility.turn_on(os.environ)  # executors inherit both
    allocate_by_threads(os.environ)
    try:
        settings = Settings.load()
        _make_scratch(settings)
        os.environ.setdefault("TRITON_CACHE_DIR", str(settings.scratch / "kernels"))  # they outlast the container, as bases do
        return Daemon(settings).run()
    except PackageNotFoundError as error:
        sys.stderr.write(f"motet worker: the package {error.name} is not installed; run: pip install 'motet[worker]'\n")
        return 2
    except SettingsError as error:
        sys.stderr.write(f"motet worker: {error}\n")
        return 2


def _make_scratch(settings: Settings) -> None:
    try:
        settings.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"MOTET_WORKER_DIR: cannot write to {settings.scratch}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
