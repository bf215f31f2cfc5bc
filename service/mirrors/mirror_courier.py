"""Mirror courier: visits the tracking servers of tasks that have changed. Any number of couriers may run.

No transaction is open during a call.
"""

import logging
from collections.abc import Mapping

from service.database.engine import Database
from service.http.outbound import Outbound
from service.messaging.claim_courier import ClaimCourier, Taken
from service.mirrors.mirror_claims import ClaimedMirror, ClaimLost, MirrorClaims
from service.mirrors.mirror_visit import MirrorVisit
from service.mirrors.mirrored_task import TaskReader
from service.mirrors.mlflow_client import MlflowClient
from service.mirrors.mlflow_tracker import MlflowTracker
from service.mirrors.tracker import CallFailed, Tracker
from service.mirrors.tracking_servers import box_of, opened, outbound_of
from service.mirrors.wandb_client import WandbClient
from service.mirrors.wandb_tracker import WandbTracker
from service.secret_box import SecretBox, Unsealable
from service.settings import Settings

log = logging.getLogger(__name__)

SLOTS = 16  # visits of a process at once
_SLOW_SECONDS = 5.0  # a call that takes longer marks its server as slow


class MirrorCourier(ClaimCourier[ClaimedMirror]):
    name, slots = "mirror courier", SLOTS

    def __init__(self, db: Database, outbound: Outbound, box: SecretBox) -> None:
        super().__init__()
        self._db, self._outbound, self._box, self._claims = db, outbound, box, MirrorClaims(db)

    @classmethod
    def of(cls, settings: Settings, db: Database) -> "MirrorCourier":
        return cls(db, outbound_of(settings), box_of(settings))

    def take(self, most: int) -> Taken[ClaimedMirror]:
        return self._claims.take(most)

    def work_off(self, claimed: ClaimedMirror) -> None:
        try:
            self._claims.note_pace(claimed, slow=self._visit(claimed))
        except ClaimLost:
            log.info("the visit of %s ends: it was stopped or changed meanwhile", claimed.id)

    def release(self, claimed: ClaimedMirror) -> None:
        self._claims.release(claimed)

    def _visit(self, claimed: ClaimedMirror) -> bool:
        """Returns whether the server is slow. Raises ClaimLost."""
        try:
            tracker = _tracker(self._outbound, claimed, opened(self._box, claimed.credentials))
        except Unsealable as error:
            log.error("credentials of tracking server %s: %s", claimed.server_id, error)
            why = f"its credentials cannot be read on our side; give them anew: PATCH /v1/tracking-servers/{claimed.server_id}"
            self._claims.failed(claimed, why, final=True)
            return False
        try:
            visited = MirrorVisit(TaskReader(self._db, claimed), tracker).run()
        except CallFailed as failed:
            self._claims.failed(claimed, str(failed), failed.final, failed.wait)
            return not failed.final
        self._claims.visited(claimed, visited.version, visited.left, visited.finished)
        return tracker.slowest > _SLOW_SECONDS


def _tracker(outbound: Outbound, claimed: ClaimedMirror, credentials: Mapping[str, str]) -> Tracker:
    if claimed.type == "wandb":
        return WandbTracker(WandbClient(outbound, claimed.url, credentials))
    return MlflowTracker(MlflowClient(outbound, claimed.url, credentials))
