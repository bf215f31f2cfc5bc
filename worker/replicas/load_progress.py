"""Says how far the loading of a base is: in the log, and to whoever reports it to the service. Loads nothing."""

import logging
from collections.abc import Callable

from contract.wording.size_words import gigabytes
from worker.boot_clock import boot_now

log = logging.getLogger(__name__)

Tell = Callable[[str], None]
TELL_SECONDS, LOG_SECONDS = 1.0, 10.0  # at least, between sentences


class LoadProgress:
    """Called as Backbone.load's `on_progress`. what: is loaded. tell: takes sentences."""

    def __init__(self, what: str, tell: Tell = lambda sentence: None) -> None:
        self._what, self._tell = what, tell
        self._began = self._told_at = self._logged_at = boot_now()

    def __call__(self, loaded: int, whole: int) -> None:
        now = boot_now()
        sentence = f"{self._what}: {gigabytes(loaded)} of {gigabytes(whole)} loaded"
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._tell(sentence)
        if loaded == whole:
            log.info("%s: %s loaded in %.1f s", self._what, gigabytes(whole), now - self._began)
        elif now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.info("%s", sentence)
