"""The node's heartbeat: a separate process, so that no busy daemon or executor delays it. Knows no jobs.

It sends the daemon's list of placements at a fixed interval, and at once after a change, and passes each answer back with the
time of its request. It ends when the daemon's pipe closes.
"""

import logging
import threading
from pathlib import Path

from contract.messages.node_messages import Heartbeat, Pulse
from worker.api_client import LinkError, NodeLink, NodeUnknown
from worker.boot_clock import boot_now
from worker.data.base_cache import fetch_rate, held_bases
from worker.parent_watchdog import exit_with_parent
from worker.pipe_messages import (
    HEARTBEAT_COMMANDS,
    HeartbeatResult,
    Identity,
    Pulses,
    UnknownNode,
    Writer,
    take_stdout,
)
from worker.stderr_logging import log_to_stderr

log = logging.getLogger("worker.node.heartbeat")

_RETRY_SECONDS = 1.0


class HeartbeatState:
    """Content of the next heartbeat, written by the thread that reads the daemon's pipe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._identity: Identity | None = None
        self._pulses = Pulses(placements=[])
        self._now = self._unread = False

    def apply(self, command: Identity | Pulses) -> None:
        """Store a message from the daemon."""
        with self._changed:
            if isinstance(command, Identity):
                self._identity = command
            else:
                self._pulses, self._now = command, self._now or command.now
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
            report = self._pulses
        pulses = [
            Pulse(
                placement_id=p.placement_id,
                fence=p.fence,
                phase=p.phase,
                progress_age=max(0.0, now - p.progress_at),
                waits_for=None if p.waits_for is None else p.waits_for[:1000],
                loading=None if p.loading is None else p.loading[:1000],
            )
            for p in report.placements
        ]
        age = None if report.applied_version is None else max(0.0, now - report.applied_at)
        bases, rate = self._cache(Path(self.identity().bases))
        return Heartbeat(
            boot_id=boot_id,
            pulses=pulses,
            applied_version=report.applied_version,
            applied_age=age,
            bases=bases,
            base_bytes_per_second=rate,
        )

    def _cache(self, folder: Path) -> tuple[list[str] | None, float | None]:
        """The whole bases on this node's disk, and how fast they were fetched. Nothing of a disk that fails: leases are
        renewed all the same, since tasks that train do not need it."""
        try:
            found = held_bases(folder)[:1000], fetch_rate(folder)
        except OSError as error:
            if not self._unread:
                log.error("the cache of bases cannot be read, and the service is not told which the node has: %s", error)
            self._unread = True
            return None, None
        self._unread = False
        return found


def main() -> None:
    log_to_stderr()
    news = Writer(take_stdout())
    state = HeartbeatState()
    exit_with_parent(HEARTBEAT_COMMANDS, state.apply)
    identity = state.identity()
    away = False
    with NodeLink(identity.api_url) as link:
        while True:
            sent_at = boot_now()
            try:
                answer = link.heartbeat(identity.node_id, identity.credential, state.heartbeat(identity.boot_id, sent_at))
            except NodeUnknown:
                news.write(UnknownNode())
                return
            except LinkError as error:
                if not away:
                    log.warning("no answer to a heartbeat: %s", error)
                away = True
                state.wait(min(_RETRY_SECONDS, identity.seconds))
                continue
            if away:
                log.info("heartbeats are answered again")
            away = False
            news.write(HeartbeatResult(sent_at=sent_at, answer=answer))
            state.wait(max(0.0, identity.seconds - (boot_now() - sent_at)))


if __name__ == "__main__":
    main()
