"""Reads back, in a thread beside the loop, what a job that ends takes of its weights at its lowest losses. Knows no jobs."""

import logging
import threading
from collections.abc import Sequence

from torch import Tensor

from worker.adapters.job_checkpoint import UnreadableWeights, mean_of
from worker.adapters.weights_copies import WeightsCopy

log = logging.getLogger(__name__)


class LowestReading:
    """Of the mean of all copies, and of the first; holds both as long as it lives. Copies may be let go while they are read."""

    def __init__(self, copies: Sequence[WeightsCopy]) -> None:
        """copies: in the order of their losses; reading begins now."""
        self._copies = tuple(copies)
        self._means: dict[int, Tensor] = {}  # of the first so many
        self._error: str | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._read_all, name="weights read back", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            log.warning("all tasks wait while weights at the lowest losses are read back: %s", error)
            self._thread = None
            self._read_all()

    @property
    def over(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def mean(self, count: int) -> Tensor | None:
        """Of the weights at so many lowest losses, float32 [rank, W]: of all or of one; None of others. Waits for the reading.
        Raises UnreadableWeights."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise UnreadableWeights(self._error)
        return self._means.get(count)

    def _read_all(self) -> None:
        try:
            weights = [copy.read() for copy in self._copies]
            for count in {1, len(weights)}:
                if (mean := mean_of(weights[:count])) is not None:
                    self._means[count] = mean
        except UnreadableWeights as error:
            self._error = str(error)
