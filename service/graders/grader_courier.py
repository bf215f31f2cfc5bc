"""Grader courier: posts waiting texts to their endpoints and records the scores. Any number of couriers may run.

A text is sent at least once; what was recorded is never sent again. No transaction is open during a call. A retry waits in the
table, so a courier looks again when it is woken, when a call ends, and when a grader's rate allows its next text.
"""

import logging
import math
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from service.database.engine import Database
from service.graders.endpoint_call import Graded, grade
from service.graders.endpoint_graders import opened
from service.graders.text_claims import ClaimedText, TextClaims
from service.http.outbound import Outbound
from service.secret_box import SecretBox, Unsealable

log = logging.getLogger(__name__)

SLOTS = 16  # calls of a process at once
_SWEEP_SECONDS = 5.0  # between two looks for gradings that are over

Finish = Callable[[str], None]  # gives the scores of a grading that is over to its evaluation


class GraderCourier:
    """Grades due texts in a background thread, each in a thread of its own; `wake` returns at once."""

    def __init__(self, db: Database, outbound: Outbound, box: SecretBox, call_seconds: float, finish: Finish) -> None:
        self._outbound, self._box, self._finish = outbound, box, finish
        self._claims = TextClaims(db, call_seconds)
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()  # guards all below
        self._in_flight: dict[tuple[str, int], ClaimedText] = {}
        self._look = self._stopping = False  # a text may be due or a slot free

    def wake(self) -> None:
        """Look for due texts in the background; a thread that died is replaced."""
        self._look_again()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="grader courier", daemon=True)
            self._thread.start()

    def close(self, seconds: float = 5.0) -> None:
        """Send no more texts; those whose calls do not end within so many seconds go back to the table."""
        until = time.monotonic() + seconds
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._in_flight, timeout=max(0.0, until - time.monotonic()))
            left = list(self._in_flight.values())
        try:
            for claimed in left:
                self._claims.release(claimed)
        except SQLAlchemyError as error:
            log.warning("texts in flight are sent again after their timeout, the database does not answer: %s", error)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._look or self._stopping)
                if self._stopping:
                    return
            try:
                self.grade_due()
            except SQLAlchemyError as error:
                log.error("texts are graded later, the database does not answer: %s", error)

    def grade_due(self) -> int:
        """Send every due text, also those that become due meanwhile; returns how many calls were made."""
        made, swept = 0, -math.inf
        while True:
            if time.monotonic() - swept >= _SWEEP_SECONDS:
                for grading_id in self._claims.over():
                    self._conclude(grading_id)
                swept = time.monotonic()
            with self._changed:
                if self._stopping:
                    return made
                free, self._look = SLOTS - len(self._in_flight), False
            taken = self._claims.take(free) if free > 0 else None
            for claimed in taken.texts if taken is not None else ():
                self._start(claimed)
                made += 1
            seconds = taken.seconds if taken is not None else None
            with self._changed:
                if not (self._in_flight or self._look or seconds is not None):
                    return made
                self._changed.wait_for(lambda: self._look or self._stopping, timeout=seconds)

    def _start(self, claimed: ClaimedText) -> None:
        with self._changed:
            self._in_flight[claimed.grading_id, claimed.place] = claimed
        threading.Thread(target=self._run, args=(claimed,), name="grader call", daemon=True).start()

    def _run(self, claimed: ClaimedText) -> None:
        try:
            over = self._claims.record(claimed, self._outcome(claimed))
        except SQLAlchemyError as error:
            log.error("text %d of %s may have no outcome, and is then sent again: %s", claimed.place, claimed.grading_id, error)
        else:
            if over:
                self._conclude(claimed.grading_id)
        finally:
            with self._changed:
                self._in_flight.pop((claimed.grading_id, claimed.place), None)  # `close` may have let it be taken again
            self._look_again()

    def _conclude(self, grading_id: str) -> None:
        """A grading that cannot be finished now keeps no other from it: the next look finds it again."""
        try:
            self._finish(grading_id)
        except SQLAlchemyError as error:
            log.error("%s is over, and its evaluation gets the scores later: %s", grading_id, error)

    def _outcome(self, claimed: ClaimedText) -> Graded:
        try:
            headers = opened(self._box, claimed.headers)
        except Unsealable as error:
            log.error("headers of %s: %s", claimed.grading_id, error)
            return Graded(None, "its headers cannot be read on our side; post the task again")
        return grade(self._outbound, claimed.url, headers, claimed.text)

    def _look_again(self) -> None:
        with self._changed:
            self._look = True
            self._changed.notify_all()
