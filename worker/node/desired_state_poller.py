"""Fetches this node's desired state and reports lost placements, from a thread of its own. Decides nothing, but refuses each
placement that this worker cannot parse, so that the service looks for a node that can.

The thread reports losses before it fetches the desired state, so an answer never lists a placement that was already given up.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from contract.messages.node_messages import NodeWelcome, PlacementsLost
from contract.messages.placement_messages import DesiredState
from contract.states import RequeueReason
from worker.api_client import LinkError, NodeLink, NodeUnknown, Refused, Unreachable, UnreadPlacement
from worker.boot_clock import boot_now

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Desired:
    """The node's desired state, and when it was requested."""

    node_id: str
    sent_at: float
    state: DesiredState


@dataclass(frozen=True)
class NodeForgotten:
    """The service no longer knows this node under this credential."""

    credential: str


class DesiredStates:
    """The thread calls `on_event` with every Desired, and last with NodeForgotten if the service has forgotten the node."""

    def __init__(self, link: NodeLink, welcome: NodeWelcome, on_event: Callable[[Desired | NodeForgotten], None]) -> None:
        self._link, self._welcome, self._on_event = link, welcome, on_event
        self._changed = threading.Condition()
        self._wanted = True
        self._lost: list[PlacementsLost] = []
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="desired state", daemon=True)
        self._thread.start()

    def poll_soon(self) -> None:
        """Fetch the desired state soon."""
        with self._changed:
            self._wanted = True
            self._changed.notify()

    def report_lost(self, lost: PlacementsLost) -> None:
        with self._changed:
            self._lost.append(lost)
            self._wanted = True
            self._changed.notify()

    def close(self, seconds: float = 0.0) -> None:
        """Stop fetching. Waits up to `seconds` while the thread reports the remaining losses."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        away, refusal = False, ""
        while self._next():
            try:
                self._poll()
            except NodeUnknown:
                self._on_event(NodeForgotten(self._welcome.credential))
                return
            except Unreachable as error:
                if not away:
                    log.warning("the service is away: %s", error)
                away = True
                with self._changed:
                    if self._closed:
                        return
                    self._wanted = True
                    self._changed.wait_for(lambda: self._closed, timeout=_RETRY_SECONDS)
            except LinkError as error:
                if str(error) != refusal:  # each heartbeat asks again
                    log.error("the service refuses to tell what to run: %s", error)
                refusal = str(error)
            else:
                away, refusal = False, ""

    def _next(self) -> bool:
        """Wait for work. False once the poller is closed and all losses are reported."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._lost or self._closed)
            return bool(self._lost) or not self._closed

    def _poll(self) -> None:
        node_id, credential = self._welcome.node_id, self._welcome.credential
        while self._lost:
            self._report_one(node_id, credential, self._lost[0])
            with self._changed:
                self._lost.pop(0)
        with self._changed:
            wanted, self._wanted = self._wanted and not self._closed, False
        if wanted:
            sent_at = boot_now()
            state, unread = self._link.desired(node_id, credential)
            for one in unread:
                self._refuse(one)
            self._on_event(Desired(node_id, sent_at, state))

    def _refuse(self, unread: UnreadPlacement) -> None:
        log.error("placement %s cannot be read and is refused: %s", unread.placement_id, unread.why)
        detail = f"the node could not read it: {unread.why}"[:2000]
        fences = {unread.placement_id: unread.fence}
        self.report_lost(PlacementsLost(reason=RequeueReason.NODE_LOST, fences=fences, detail=detail, refused=True))

    def _report_one(self, node_id: str, credential: str, lost: PlacementsLost) -> None:
        try:
            self._link.lost(node_id, credential, lost)
        except NodeUnknown:
            raise
        except Refused as error:
            log.error("the report of lost placements was refused; their leases will expire: %s", error)
