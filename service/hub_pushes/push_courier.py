"""Pushes what is due to the hub, in threads of a background process. Any number of couriers may run.

A push is claimed for minutes, and the claim is renewed as bytes go: if its process dies, another one goes on. No transaction is
open during a call.
"""

import logging

from service.database.claimed_rows import Lost
from service.dependencies import Dependencies
from service.http.problems import Problem, Unavailable
from service.hub.hub_client import Hub
from service.hub.hub_refusals import HubRefused
from service.hub.hub_writer import HubWriter
from service.hub_pushes.push_claims import ClaimedPush, PushClaims
from service.hub_pushes.push_requests import box_of
from service.hub_pushes.push_run import PushRun
from service.messaging.claim_courier import ClaimCourier, Taken
from service.secret_box import Unsealable

log = logging.getLogger(__name__)

_SLOTS = 4  # pushes of a process at once
_SILENT_SECONDS = 100.0  # after which a hub that sends nothing, or takes nothing, has failed


class HubPushCourier(ClaimCourier[ClaimedPush]):
    name, slots = "hub pushes", _SLOTS

    def __init__(self, dependencies: Dependencies) -> None:
        super().__init__()
        self._storage, self._claims = dependencies.storage, PushClaims(dependencies.db)
        self._box = box_of(dependencies.settings)
        self._hub = Hub(dependencies.settings, seconds=_SILENT_SECONDS)

    def take(self, most: int) -> Taken[ClaimedPush]:
        claimed = self._claims.take()
        return Taken([]) if claimed is None else Taken([claimed], seconds=0.0)

    def release(self, claimed: ClaimedPush) -> None:
        self._claims.release(claimed)

    def work_off(self, claimed: ClaimedPush) -> None:
        """Bring one push to its end, or to its next attempt."""
        try:
            commit = self._pushed(claimed)
            self._claims.finish(claimed, commit)
            log.info("push %s is commit %s of %s", claimed.id, commit, claimed.repository)
        except Lost:
            log.info("push %s was given up, or is another process's now", claimed.id)
        except (Unavailable, OSError) as error:
            self._claims.retry(claimed, _problem(error))
        except Problem as refusal:
            self._claims.fail(claimed, refusal)
        except Unsealable as error:
            log.error("push %s: %s", claimed.id, error)
            gone = "The secret key that its token was encrypted under is gone; push it again."
            self._claims.fail(claimed, HubRefused("token_lost", gone))

    def _pushed(self, claimed: ClaimedPush) -> str:
        """The commit."""
        if claimed.endpoint != self._hub.endpoint:
            why = f"The token is for {claimed.endpoint}, and this service calls {self._hub.endpoint} by now; push it again."
            raise HubRefused("hub_changed", why)
        writer = HubWriter(self._hub, claimed.repository, self._box.open(claimed.sealed))
        return PushRun(self._claims, claimed, writer, self._storage, self.pause).run()


def _problem(error: Exception) -> Problem:
    return error if isinstance(error, Problem) else Unavailable(f"Storage does not give it now: {error}.")
