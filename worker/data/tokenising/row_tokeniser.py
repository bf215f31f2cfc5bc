"""Where an executor tokenises its files: in its own process, or in those beside it. Knows no cache."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

from worker.data.tokenising.file_tokeniser import Reading, Tick, tokenise, work_of
from worker.data.tokenising.tokenising_process import ProcessFailed, TokenisingProcess

log = logging.getLogger(__name__)

_APART_WORK = 4 << 20  # of a file for which a process is started: one of less is read before that has loaded a tokenizer
_MOST_SECONDS = 60.0  # of a process that stays, for a file that takes one or two: others may wait for it
_CHECK_SECONDS = 0.2
_CORES = len(os.sched_getaffinity(0))
_STAYING = max(1, min(4, _CORES // 4))  # processes that stay; each uses all cores for a part of the time
# Processes of one file. They share the cores in time, so that a short file waits for no long one.
_YIELDING = max(4, _CORES // 2)


class RowTokeniser:
    """Tokenises files, for any number of threads. One that takes long is read in a process of its own, which yields the cores.
    Others in one that stays, first come first served: the first is started beside the second file, since many executors only
    ever read one, and more as files wait for it. Until one is ready files are read here, one after another."""

    def __init__(self) -> None:
        self._here, self._apart = threading.Lock(), threading.Semaphore(_YIELDING)
        self._changed = threading.Condition()  # of all below
        self._idle: list[TokenisingProcess] = []  # that stay: ready, or loading
        self._waiting: list[object] = []  # for one of them, in the order of arrival
        self._busy = 0
        self._has_read = self._closed = False

    def tokenise(self, path: Path, reading: Reading, into: Path, on_progress: Tick) -> None:
        """Write the file's rows into the folder `into` as a stream. `on_progress` is called again and again, and may raise to
        end it. Raises DataError and OSError."""
        if reading.folder is None or not self._tokenised_apart(path, reading, into, on_progress):
            while not self._here.acquire(timeout=_CHECK_SECONDS):
                on_progress()
            try:
                tokenise(path, reading, into, on_progress)
            finally:
                self._here.release()

    def close(self) -> None:
        """End the processes that stay: those at work when they are done."""
        with self._changed:
            self._closed = True
            while self._idle:
                self._idle.pop().end()

    def _tokenised_apart(self, path: Path, reading: Reading, into: Path, on_progress: Tick) -> bool:
        try:
            if _takes_long(path):
                with self._process_of_its_own(reading, on_progress) as process:
                    process.tokenise(path, reading, into, on_progress)
                return True
            standby = self._taken_standby(reading, on_progress)
            if standby is None:
                return False
            try:
                standby.tokenise(path, reading, into, _bounded(on_progress))
            finally:
                self._give_back(standby)
            return True
        except ProcessFailed as error:
            log.warning(
                "rows could not be tokenised in a process of their own (%s): they are read in this one, which slows down the "
                "steps beside them",
                error,
            )
            return False

    @contextmanager
    def _process_of_its_own(self, reading: Reading, on_progress: Tick) -> Iterator[TokenisingProcess]:
        while not self._apart.acquire(timeout=_CHECK_SECONDS):
            on_progress()
        try:
            process = TokenisingProcess(reading, yields=True)
            try:
                yield process
            finally:
                process.end()
        finally:
            self._apart.release()

    def _taken_standby(self, reading: Reading, on_progress: Tick) -> TokenisingProcess | None:
        """One that is ready, once there is; None where none will be soon. Raises ProcessFailed."""
        with self._in_line() as first:
            with self._changed:
                wanted, self._has_read = self._has_read, True
            while True:
                with self._changed:
                    if first() and (ready := self._ready()) is not None:
                        self._busy += 1
                        return ready
                    if wanted and not self._idle and self._busy < _STAYING and not self._closed:
                        self._idle.append(TokenisingProcess(reading, yields=False))
                    if first() and not self._busy:
                        return None
                    self._changed.wait(_CHECK_SECONDS)
                on_progress()

    @contextmanager
    def _in_line(self) -> Iterator[Callable[[], bool]]:
        """Within it, what is yielded says whether all who came before have left."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            yield lambda: self._waiting[0] is ticket
        finally:
            with self._changed:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def _ready(self) -> TokenisingProcess | None:
        """Takes one from the idle ones, if one is ready. Raises ProcessFailed for one that has ended."""
        for process in list(self._idle):
            try:
                if process.ready():
                    self._idle.remove(process)
                    return process
            except ProcessFailed:
                self._idle.remove(process)
                raise
        return None

    def _give_back(self, process: TokenisingProcess) -> None:
        with self._changed:
            self._busy -= 1
            if self._closed:
                process.end()
            elif process.lives:
                self._idle.append(process)
            self._changed.notify_all()


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
