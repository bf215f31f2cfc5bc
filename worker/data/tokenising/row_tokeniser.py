"""Where an executor tokenises its files: in its own process, or in one beside it. Knows no cache."""

import logging
import time
from itertools import accumulate
from pathlib import Path

from worker.data.tokenising.file_tokeniser import Reading, Tick, tokenise, work_of
from worker.data.tokenising.tokenising_process import ProcessFailed, TokenisingProcess

log = logging.getLogger(__name__)

_APART_WORK = 4 << 20  # of a file for which a process is started: one of less is read before that has loaded a tokenizer
_MOST_SECONDS = 60.0  # of the process that stays, for a file that takes one or two: other placements wait behind it


class RowTokeniser:
    """Tokenises one file after another, for one thread. One that takes long is read in a process of its own, which yields the
    cores. Others in one that stays: it is started beside the second file, since many executors only ever read one, and until it
    is ready files are read here."""

    def __init__(self) -> None:
        self._standby: TokenisingProcess | None = None
        self._has_read = False

    def tokenise(self, path: Path, reading: Reading, into: Path, on_progress: Tick) -> None:
        """Write the file's rows into the folder `into` as a stream. `on_progress` is called again and again, and may raise to
        end it. Raises DataError and OSError."""
        if reading.folder is None or not self._tokenised_apart(path, reading, into, on_progress):
            tokenise(path, reading, into, on_progress)

    def close(self) -> None:
        if self._standby is not None:
            self._standby.end()

    def _tokenised_apart(self, path: Path, reading: Reading, into: Path, on_progress: Tick) -> bool:
        try:
            if _takes_long(path):
                process = TokenisingProcess(reading, yields=True)
                try:
                    process.tokenise(path, reading, into, on_progress)
                finally:
                    process.end()
                return True
            standby = self._ready_standby(reading)
            if standby is not None:
                standby.tokenise(path, reading, into, _bounded(on_progress))
            return standby is not None
        except ProcessFailed as error:
            log.warning(
                "rows could not be tokenised in a process of their own (%s): they are read in this one, which slows down the "
                "steps beside them",
                error,
            )
            return False

    def _ready_standby(self, reading: Reading) -> TokenisingProcess | None:
        wanted, self._has_read = self._has_read, True
        if wanted and (self._standby is None or not self._standby.lives):
            self._standby = TokenisingProcess(reading, yields=False)
        return self._standby if self._standby is not None and self._standby.ready() else None


def _bounded(on_progress: Tick) -> Tick:
    until = time.monotonic() + _MOST_SECONDS

    def tick() -> None:
        on_progress()
        if time.monotonic() > until:
            raise ProcessFailed(f"no answer in {_MOST_SECONDS:g} s")

    return tick


def _takes_long(path: Path) -> bool:
    with path.open("rb") as lines:
        return any(work >= _APART_WORK for work in accumulate(map(work_of, lines)))
