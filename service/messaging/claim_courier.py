"""Claim courier: claims due rows and works each off in a thread of its own, in the background. Knows no tables.

What is due, how many may be in flight, and what an outcome means is the subclass's; so any number of couriers may run. A retry
waits in the table, so a courier looks again when it is woken, when a row is done, and when its subclass says. Where an
unforeseen exception breaks an attempt off, its claim runs out, and the table has counted it (poison_rows.py).
"""

import itertools
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 5.0  # between two sweeps

Claimed = TypeVar("Claimed")


class Stopped(Exception):
    """The courier is asked to stop, and its rows go back as they were."""


@dataclass(frozen=True)
class Taken(Generic[Claimed]):
    """rows: claimed. seconds: after which another may be claimed, though no courier is woken; None: not known."""

    rows: Sequence[Claimed]
    seconds: float | None = None


class ClaimCourier(ABC, Generic[Claimed]):
    """`wake` returns at once; `work_off_due` works in the calling thread and those that it starts."""

    name: ClassVar[str]
    slots: ClassVar[int]  # rows of a process in flight
    daemon: ClassVar[bool] = True  # False: the end of the process waits for rows in flight, which need no release

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._numbers = itertools.count()
        self._changed = threading.Condition()  # guards all below
        self._in_flight: dict[int, Claimed] = {}
        self._look = False  # a row may be due or a slot free
        self._stopping = threading.Event()

    @abstractmethod
    def take(self, most: int) -> Taken[Claimed]:
        """Claim due rows, at most so many."""

    @abstractmethod
    def work_off(self, claimed: Claimed) -> None:
        """Do what the row asks for, and record the outcome. Where it raises Stopped, the row is released."""

    @abstractmethod
    def release(self, claimed: Claimed) -> None:
        """Give back a row whose work will not end in this process."""

    def pause(self, seconds: float) -> None:
        """Sleep in the midst of a row's work; 0: only look. Raises Stopped once the courier is asked to stop."""
        if self._stopping.wait(seconds):
            raise Stopped

    def sweep(self) -> None:
        """Finish what a process that died left behind; called at times."""

    def wake(self) -> None:
        """Look for due rows in the background; a thread that died is replaced."""
        self._look_again()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Claim no more rows; returns at once."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def close(self, seconds: float = 5.0) -> None:
        """Stop; rows that are not done within so many seconds are released."""
        until = time.monotonic() + seconds
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, timeout=max(0.0, until - time.monotonic()))
            left = list(self._in_flight.values())
        try:
            for claimed in left:
                self.release(claimed)
        except SQLAlchemyError as error:
            log.warning("%s: what is in flight is due after its timeout, the database does not answer: %s", self.name, error)

    def work_off_due(self) -> int:
        """Work off every due row, also those that become due meanwhile; returns how many."""
        done, swept = 0, -math.inf
        while True:
            with self._changed:
                self._look = False  # before the database is asked: whoever finds none waits to be woken
            if time.monotonic() - swept >= _SWEEP_SECONDS:
                self.sweep()
                swept = time.monotonic()
            with self._changed:
                if self._stopping.is_set():
                    return done
                free = self.slots - len(self._in_flight)
            taken = self.take(free) if free > 0 else Taken[Claimed]([])
            for claimed in taken.rows:
                self._start(claimed)
                done += 1
            with self._changed:
                if not (self._in_flight or self._look or taken.seconds is not None):
                    return done
                self._changed.wait_for(lambda: self._look or self._stopping.is_set(), timeout=taken.seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._look or self._stopping.is_set())
                if self._stopping.is_set():
                    return
            try:
                self.work_off_due()
            except SQLAlchemyError as error:
                log.error("%s goes on later, the database does not answer: %s", self.name, error)

    def _start(self, claimed: Claimed) -> None:
        number = next(self._numbers)
        with self._changed:
            self._in_flight[number] = claimed
        try:
            name, daemon = f"{self.name} call", self.daemon
            threading.Thread(target=self._run, args=(number, claimed), name=name, daemon=daemon).start()
        except RuntimeError as error:  # there is room for no other thread
            log.warning("%s works off one row at a time: %s", self.name, error)
            self._run(number, claimed)

    def _run(self, number: int, claimed: Claimed) -> None:
        try:
            try:
                self.work_off(claimed)
            except Stopped:
                self.release(claimed)
        except SQLAlchemyError as error:
            log.error("%s: %s may have no outcome, and is then due again: %s", self.name, claimed, error)
        except Exception:  # what one tenant's row brings about may not end a process that works for all: it has no outcome
            log.critical("%s: an attempt of %s broke off", self.name, claimed, exc_info=True)
        finally:
            with self._changed:
                del self._in_flight[number]
            self._look_again()

    def _look_again(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()
