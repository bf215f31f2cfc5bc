"""The node's heartbeat: a separate process, so that no busy daemon or executor delays it. Knows no jobs.

It sends the daemon's list of placements at a fixed interval, and at once after a change, and passes each answer back with the
time of its request. It ends when the daemon's pipe closes.
"""

import logging
import threading

from contract.messages.node_messages import Heartbeat, Pulse
from worker.api_client import LinkError, NodeLink, NodeUnknown
from worker.boot_clock import boot_now
from worker.parent_watchdog import exit_with_parent
from worker.pipe_messages import WISHES, Beat, Identity, Pulses, Unknown, Writer, take_stdout
from worker.stderr_logging import log_to_stderr

log = logging.getLogger("worker.node.heartbeat")

_RETRY_SECONDS = 1.0


class HeartbeatState:
    """Content of the next heartbeat, written by the thread that reads the daemon's pipe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._identity: Identity | None = None
        self._pulses = Pulses(placements=[])
        self._now = False

    def heed(self, wish: Identity | Pulses) -> None:
        """Store a message from the daemon."""
        with self._changed:
            if isinstance(wish, Identity):
                self._identity = wish
            else:
                self._pulses, self._now = wish, self._now or wish.now
            self._changed.notify()

    def identity(self) -> Identity:
        with self._changed:
            self._changed.wait_for(lambda: self._identity is not None)
            assert self._identity is not None
            return self._identity

    def wait(self, seconds: float) -> None:
        """Block until a heartbeat is due: after `seconds`, or when the daemon wants one at once."""
        with self._changed:
            self._changed.wait_for(lambda: self._now, timeout=seconds)
            self._now = False

    def heartbeat(self, boot_id: str, now: float) -> Heartbeat:
        with self._changed:
            said = self._pulses
        pulses = [
            Pulse(
                placement_id=p.placement_id,
                fence=p.fence,
                phase=p.phase,
                progress_age=max(0.0, now - p.progress_at),
                waits_for=None if p.waits_for is None else p.waits_for[:1000],
            )
            for p in said.placements
        ]
        age = None if said.applied_version is None else max(0.0, now - said.applied_at)
        return Heartbeat(boot_id=boot_id, pulses=pulses, applied_version=said.applied_version, applied_age=age)


def main() -> None:
    log_to_stderr()
    news = Writer(take_stdout())
    board = HeartbeatState()
    exit_with_parent(WISHES, board.heed)
    identity = board.identity()
    away = False
    with NodeLink(identity.api_url) as link:
        while True:
            sent_at = boot_now()
            try:
                answer = link.heartbeat(identity.node_id, identity.credential, board.heartbeat(identity.boot_id, sent_at))
            except NodeUnknown:
                news.write(Unknown())
                return
            except LinkError as error:
                if not away:
                    log.warning("no answer to a heartbeat: %s", error)
                away = True
                board.wait(min(_RETRY_SECONDS, identity.seconds))
                continue
            if away:
                log.info("heartbeats are answered again")
            away = False
            news.write(Beat(sent_at=sent_at, answer=answer))
            board.wait(max(0.0, identity.seconds - (boot_now() - sent_at)))


if __name__ == "__main__":
    main()
