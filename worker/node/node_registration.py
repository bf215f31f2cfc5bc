"""Registers the node, and owns what one registration runs: heartbeat, wake-ups, desired state, cache upkeep."""

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from contract.compatibility.capabilities import SHARDED_BASES, understood
from contract.compatibility.protocol import PROTOCOL, refusal
from contract.messages.node_messages import NodeRegistration, NodeWelcome, PlacementsLost
from contract.states import RequeueReason
from contract.wording.field_mistakes import shown
from worker.api_client import JoinRefused, LinkError, NodeLink, Refused, Unreachable
from worker.boot_clock import boot_now
from worker.data.base_cache import BASES, held_bases
from worker.data.executor_folders import EXECUTORS
from worker.data.node_cache import NodeCache
from worker.hosts.program_versions import program_versions
from worker.node.cache_upkeep import CacheUpkeep
from worker.node.child_process import Child
from worker.node.desired_state_poller import DesiredStates
from worker.node.node_credential import NodeCredential
from worker.node.node_hosts import NodeHosts
from worker.node.wakeup_listener import WakeupListener
from worker.pipe_messages import HEARTBEAT_NEWS, Identity, Pulses
from worker.settings import Settings, SettingsError

log = logging.getLogger(__name__)

_RETRY_SECONDS, _LONGEST_SECONDS = 1.0, 30.0  # what joins and gives back again and again has the service plan each time
_THREADS = 3  # of a NodeMembership


def start_heartbeat_process(on_event: Callable[[Any], None]) -> Child:
    """Start the heartbeat process, which sends nothing before it gets its Identity."""
    return Child("worker.node.heartbeat", HEARTBEAT_NEWS, on_event)


def join(
    settings: Settings,
    link: NodeLink,
    hosts: NodeHosts,
    on_event: Callable[[Any], None],
    stop_requested: Callable[[float], bool],
    credential: NodeCredential,
) -> "NodeMembership | None":
    """Register under a new boot id, retrying while the service is unreachable or the system starts no threads. None if
    `stop_requested` returns True meanwhile.

    Raises SettingsError if the service refuses the node.
    """
    heartbeat, why, pause = (
        start_heartbeat_process(on_event),
        "",
        _RETRY_SECONDS,
    )  # the process imports its modules while we register
    try:
        registration = NodeRegistration(
            name=settings.node_name,
            boot_id=secrets.token_hex(16),
            devices=hosts.devices,
            versions=program_versions(),
            capabilities=sorted(understood() - hosts.lacking - _declined(settings)),
            credential=credential.propose(),
            bases=held_bases(settings.scratch / BASES)[:1000],
        )
        while True:
            try:
                _check_threads()
                welcome = _register(settings, credential, link, registration)
            except Unreachable as error:
                if why != (why := f"waiting for the service at {shown(settings.api_url)}: {error}"):
                    log.warning("%s", why)
            except _ThreadsLacking as error:
                if why != (why := f"this node does not join yet, since the system starts no more threads: {error}"):
                    log.error("%s", why)
            else:
                try:
                    membership = NodeMembership(settings, link, welcome, registration.boot_id, heartbeat, on_event)
                except RuntimeError as error:
                    if why != (why := f"this node takes no work yet, since the system starts no more threads: {error}"):
                        log.error("%s", why)
                    _give_back(link, welcome, str(error))
                    pause = min(2 * pause, _LONGEST_SECONDS)
                else:
                    log.info("joined as node %s (%s), %d device(s)", registration.name, welcome.node_id, len(hosts.devices))
                    return membership
            if stop_requested(pause):
                heartbeat.kill()
                return None
            heartbeat = heartbeat if heartbeat.alive else start_heartbeat_process(on_event)
    except OSError as error:
        heartbeat.kill()
        raise SettingsError(f"MOTET_WORKER_DIR: cannot keep {credential.path}: {error.strerror}") from None
    except SettingsError:
        heartbeat.kill()
        raise


def _register(settings: Settings, credential: NodeCredential, link: NodeLink, registration: NodeRegistration) -> NodeWelcome:
    """Register with the first bearer token that the service accepts. Raises Unreachable, OSError, or SettingsError for none."""
    join_token = settings.join_token.get_secret_value() if settings.join_token is not None else None
    why = "MOTET_JOIN_TOKEN is not set; an admin makes one: POST /v1/admin/join-tokens"
    for bearer in credential.bearers(join_token):
        try:
            welcome = link.register(bearer, registration)
        except JoinRefused as error:
            why = f"MOTET_JOIN_TOKEN is refused: {error}" if bearer == join_token else f"{why} ({error})"
        except Refused as error:
            raise SettingsError(f"refused to join: {error}") from None
        else:
            if (unfit := refusal(PROTOCOL, welcome.protocol, f"the service at {shown(settings.api_url)}")) is not None:
                raise SettingsError(f"cannot join: {unfit}")
            credential.confirm(welcome.credential)
            return welcome
    raise SettingsError(
        f"node {settings.node_name} may not join: {credential.path} holds no credential that is known, and {why}"
    )


class _ThreadsLacking(Exception):
    """The system starts no more threads; the message is the system's."""


def _check_threads() -> None:
    """Raises _ThreadsLacking where the system does not start those of a membership: a node that joined without them would be
    given tasks, and send no heartbeats."""
    done = threading.Event()
    try:
        for _ in range(_THREADS):
            threading.Thread(target=done.wait, name="trial", daemon=True).start()
    except RuntimeError as error:
        raise _ThreadsLacking(str(error)) from None
    finally:
        done.set()


def _give_back(link: NodeLink, welcome: NodeWelcome, why: str) -> None:
    """Until it registers anew the service gives it nothing more, and what it was given to others."""
    said = PlacementsLost(reason=RequeueReason.NODE_LOST, fences={}, detail=why[:2000], stopping=True)
    try:
        link.lost(welcome.node_id, welcome.credential, said)
    except LinkError as error:
        log.warning("the service was not told that this node takes no work, and waits for its heartbeats: %s", error)


def _declined(settings: Settings) -> frozenset[str]:
    """Capabilities that the operator does not want of this node."""
    return frozenset({SHARDED_BASES} if settings.worker_sharding == "never" else ())


class NodeMembership:
    """Several threads call `on_event` with the events of this registration. `heartbeat` waits for its identity. Raises
    RuntimeError where the system starts no more threads."""

    def __init__(
        self,
        settings: Settings,
        link: NodeLink,
        welcome: NodeWelcome,
        boot_id: str,
        heartbeat: Child,
        on_event: Callable[[Any], None],
    ) -> None:
        self.welcome = welcome
        self._on_event = on_event
        self._identity = Identity(
            api_url=settings.api_url,
            node_id=welcome.node_id,
            credential=welcome.credential,
            boot_id=boot_id,
            seconds=welcome.heartbeat_seconds,
            bases=str(settings.scratch / BASES),
        )
        with ExitStack() as begun:
            self.desired = DesiredStates(link, welcome, on_event)
            begun.callback(self.desired.close)
            self._wakeups = (
                WakeupListener(settings.redis_url, welcome.stream, self.desired.poll_soon) if settings.redis_url else None
            )
            if self._wakeups is not None:
                begun.callback(self._wakeups.close)
            cache = NodeCache(settings.scratch / "tenants", settings.worker_cache_bytes)
            self._upkeep = CacheUpkeep(link, welcome, cache, settings.scratch / EXECUTORS)
            begun.pop_all()
        self.heartbeat, self._next_heartbeat = heartbeat, 0.0  # no other is started before this
        self.heartbeat.send(self._identity)

    def pulse(self, pulses: Pulses) -> None:
        """Send the heartbeat process the current placements. One that has ended is replaced first, once in _RETRY_SECONDS."""
        now = boot_now()
        if not self.heartbeat.alive and now >= self._next_heartbeat:
            self._next_heartbeat = now + _RETRY_SECONDS
            self.heartbeat = start_heartbeat_process(self._on_event)
            self.heartbeat.send(self._identity)
        self.heartbeat.send(pulses)

    def close(self, seconds: float = 0.0) -> None:
        """End the threads and the heartbeat. Waits up to `seconds` while the remaining losses are reported."""
        if self._wakeups is not None:
            self._wakeups.close()
        self._upkeep.close()
        self.desired.close(seconds)
        self.heartbeat.kill()
