"""The file whose age tells a probe that the daemon goes on. Knows no probe."""

import logging
from pathlib import Path

log = logging.getLogger(__name__)


class LivenessFile:
    """path: MOTET_LIVENESS_FILE; None: there is none. A disk that cannot keep it ends no task: what follows is the probe's."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._failed = path, False

    def touch(self) -> None:
        if self._path is None:
            return
        try:
            self._path.touch()
        except OSError as error:
            if not self._failed:
                log.error("MOTET_LIVENESS_FILE cannot be touched, and a probe may take this worker for hung: %s", error)
            self._failed = True
        else:
            self._failed = False
