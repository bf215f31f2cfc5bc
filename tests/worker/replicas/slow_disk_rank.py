"""A rank whose disk gives the first file of a job that ends once the folder MOTET_TEST_DISK has one named `go on`; `asked` is
there from the moment that it is read."""

import os
import threading
import time
from pathlib import Path

from worker.adapters import weights_copies
from worker.replicas.ranks.rank_main import main

MODULE, VARIABLE = "tests.worker.replicas.slow_disk_rank", "MOTET_TEST_DISK"
ASKED, GO_ON, GAVE_UP = "asked", "go on", "gave up"
_PATIENCE, _LOOK = 60.0, 0.002  # seconds


def slow_down(folder: Path) -> None:
    read = weights_copies._WeightsFile.read

    def slow(file):
        if threading.current_thread().name == "weights read back" and not (folder / ASKED).exists():
            (folder / ASKED).touch()
            until = time.monotonic() + _PATIENCE
            while not (folder / GO_ON).exists():
                if time.monotonic() > until:
                    (folder / GAVE_UP).touch()
                    break
                time.sleep(_LOOK)
        return read(file)

    weights_copies._WeightsFile.read = slow


if __name__ == "__main__":
    slow_down(Path(os.environ[VARIABLE]))
    main()
