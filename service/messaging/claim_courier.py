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
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from service.messaging.woken_thread import WokenThread

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


class ClaimCourier(WokenThread, Generic[Claimed]):
    """`wake` returns at once; `work_off_due` works in the calling thread and those that it starts."""

    put_off = "what is due is worked off later"
    slots: ClassVar[int]  # rows of a process in flight
    daemon: ClassVar[bool] = True  # False: the end of the process waits for rows in flight, which need no release

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._in_flight: dict[int, Claimed] = {}
        self._landed = threading.Condition()  # guards it; notified as rows leave it

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

    def close(self, seconds: float = 5.0) -> None:
        """Stop; rows that are not done within so many seconds are released."""
        until = time.monotonic() + seconds
        self.stop()
        with self._landed:
            self._landed.wait_for(lambda: not self._in_flight, timeout=max(0.0, until - time.monotonic()))
            left = list(self._in_flight.values())
        try:
            for claimed in left:
                self.release(claimed)
        except SQLAlchemyError as error:
            log.warning("%s: what is in flight is due after its timeout, the database does not answer: %s", self.name, error)

    def run_due(self) -> int:
        return self.work_off_due()

    def work_off_due(self) -> int:
        """Work off every due row, also those that become due meanwhile; returns how many."""
        done, swept = 0, -math.inf
        while True:
            self._due.clear()  # before the database is asked: whoever finds none waits to be woken
            if time.monotonic() - swept >= _SWEEP_SECONDS:
                self.sweep()
                swept = time.monotonic()
            if self._stopping.is_set():
                return done
            with self._landed:
                free = self.slots - len(self._in_flight)
            taken = self.take(free) if free > 0 else Taken[Claimed]([])
            for claimed in taken.rows:
                self._start(claimed)
                done += 1
            with self._landed:
                if not (self._in_flight or self._due.is_set() or taken.seconds is not None):
                    return done
            self._due.wait(taken.seconds)

    def _start(self, claimed: Claimed) -> None:
        number = next(self._numbers)
        with self._landed:
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
            with self._landed:
                del self._in_flight[number]
                self._due.set()  # others may be due now: whoever finds none in flight finds this
                self._landed.notify_all()
