"""Grader courier: posts waiting texts to their endpoints and records the scores. Any number of couriers may run.

A text is sent at least once; what was recorded is never sent again. No transaction is open during a call.
"""

import logging
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from service.database.engine import Database
from service.graders.endpoint_call import Graded, grade
from service.graders.endpoint_graders import opened
from service.graders.text_claims import ClaimedText, TextClaims
from service.http.outbound import Outbound
from service.messaging.claim_courier import ClaimCourier, Taken
from service.secret_box import SecretBox, Unsealable

log = logging.getLogger(__name__)

SLOTS = 16  # calls of a process at once

Finish = Callable[[str], None]  # gives the scores of a grading that is over to its evaluation


class GraderCourier(ClaimCourier[ClaimedText]):
    name, slots = "grader courier", SLOTS

    def __init__(self, db: Database, outbound: Outbound, box: SecretBox, call_seconds: float, finish: Finish) -> None:
        super().__init__()
        self._outbound, self._box, self._finish = outbound, box, finish
        self._claims = TextClaims(db, call_seconds)

    def take(self, most: int) -> Taken[ClaimedText]:
        return self._claims.take(most)

    def work_off(self, claimed: ClaimedText) -> None:
        if self._claims.record(claimed, self._outcome(claimed)):
            self._conclude(claimed.grading_id)

    def release(self, claimed: ClaimedText) -> None:
        self._claims.release(claimed)

    def sweep(self) -> None:
        self._claims.give_up_poison()
        for grading_id in self._claims.over():
            self._conclude(grading_id)

    def _conclude(self, grading_id: str) -> None:
        """A grading that cannot be finished now keeps no other from it: the next look finds it again."""
        try:
            self._finish(grading_id)
        except SQLAlchemyError as error:
            log.error("%s is over, and its evaluation gets the scores later: %s", grading_id, error)
        except Exception:  # as in an attempt: one tenant's rows may not end a process that works for all
            log.critical("%s is over, and its evaluation gets no scores", grading_id, exc_info=True)

    def _outcome(self, claimed: ClaimedText) -> Graded:
        try:
            headers = opened(self._box, claimed.headers)
        except Unsealable as error:
            log.error("headers of %s: %s", claimed.grading_id, error)
            return Graded(None, "its headers cannot be read on our side; post the task again")
        return grade(self._outbound, claimed.url, headers, claimed.text)
