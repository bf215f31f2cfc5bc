"""Combines the metrics of several API processes, through prometheus_client's multiprocess files."""

import os
import shutil
import tempfile
from pathlib import Path

from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead


class MultiprocessMetrics:
    """Create it before the metrics and before forking; each forked process then sets `number`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="motet-api-metrics-"))
        self.number: int | None = None  # set after the fork, so that no process writes to its parent's files
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(self.folder)
        values.ValueClass = values.MultiProcessValue(lambda: self.number)

    def lost(self, number: int) -> None:
        """Drop an ended process's live gauges."""
        mark_process_dead(number, str(self.folder))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
