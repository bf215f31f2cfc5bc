"""Posts the fleet's needs to the operator's autoscaling webhook, in a thread of the reconciler that nothing waits for.

What was told is kept in memory alone: a process that starts tells the state that there is, so whatever crashed, and however
many reconcilers run, the last message that each of them sends is the current state. A message is the whole state, never a
difference.
"""

import json
import logging
import time

from service.autoscaling.announcement_pace import AnnouncementPace
from service.autoscaling.fleet_needs import autoscaling_state
from service.autoscaling.resource import AutoscalingState
from service.database.engine import Database, new_id
from service.http.outbound import Failed, Outbound, Refused
from service.messaging.woken_thread import WokenThread
from service.settings import Settings
from service.webhooks.signatures import headers

log = logging.getLogger(__name__)

EVENT = "autoscaling.state"
_CALL_SECONDS = 15.0


class AutoscalingWebhook(WokenThread):
    """Does nothing where the settings name no URL. A call in flight may end while `close` waits."""

    name, put_off = "autoscaling webhook", "the fleet's needs are told later"

    def __init__(self, settings: Settings, db: Database) -> None:
        super().__init__()
        self._settings, self._db = settings, db
        self._secrets = [secret.get_secret_value() for secret in settings.autoscaling_secrets]
        self._outbound = Outbound(seconds=_CALL_SECONDS)
        self._pace = AnnouncementPace(settings.autoscaling_settle_seconds)

    def wake(self) -> None:
        """Look, in the background, whether there is something to tell. Call it every few seconds."""
        if self._settings.autoscaling_url is not None:
            super().wake()

    def run_due(self) -> None:
        """Tell the state if that is due; the transaction that reads it is over before the call."""
        if self._pace.resting(time.monotonic()):
            return
        with self._db.begin() as session:
            state = autoscaling_state(session, self._settings)
        compared = _compared(state)
        if not self._pace.due(compared, time.monotonic()):
            return
        why = self._post(state)
        if why is None:
            if self._pace.told(compared, time.monotonic()):
                log.info("the autoscaling webhook takes messages again")
        elif self._pace.failed(time.monotonic()):
            log.warning("the autoscaling webhook (MOTET_AUTOSCALING_URL) took no message, and is tried again: %s", why)

    def _post(self, state: AutoscalingState) -> str | None:
        """None: it was taken; else why not."""
        url = self._settings.autoscaling_url
        assert url is not None
        id, moment = new_id("msg"), int(state.at.timestamp())
        said = {"id": id, "object": "event", "type": EVENT, "created_at": moment, "timestamp": state.at.isoformat()}
        body = json.dumps(said | {"data": state.model_dump(mode="json")}, separators=(",", ":")).encode()
        try:
            signed = headers(self._secrets, id, int(time.time()), body)
            status = self._outbound.post(url, body, signed, trusted=url).status  # of the operator: any network
        except (Refused, Failed, OSError) as error:
            return str(error)
        return None if 200 <= status < 300 else f"it answered {status}"


def _compared(state: AutoscalingState) -> object:
    """What counts as a change: not that tasks wait longer."""
    wanted = [one.model_dump(exclude={"waiting_since"}) for one in state.wanted]
    return wanted, [one.model_dump() for one in state.idle_nodes]
