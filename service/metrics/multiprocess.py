"""Adds up the measurements of several API processes, through prometheus_client's files."""

import os
import shutil
import tempfile
from pathlib import Path

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead


class MultiprocessMetrics:
    """Make one before the metrics, and before the processes are forked; `number` is then set in each."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="motet-api-metrics-"))
        self.number: int | None = None  # none writes under the name of the process that forks them
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self.folder)
        values.ValueClass = values.MultiProcessValue(lambda: self.number)

    def lost(self, number: int) -> None:
        """This process has ended: what it had in use, it has not."""
        mark_process_dead(number, str(self.folder))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
