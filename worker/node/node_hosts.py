"""The further hosts of a node, as its daemon knows them: their devices, their clocks, and whether they are still there.

The daemon keeps a connection to each host's agent. A host that is lost ends the node: its daemon gives all placements back and
ends, and joins again, started anew, once all hosts answer.
"""

import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from contract.messages.node_messages import Device
from worker.boot_clock import boot_now
from worker.hosts.device_discovery import beyond_hardware, find_devices
from worker.hosts.host_link import HostRefused, HostUnreachable, connect
from worker.hosts.host_map import HOSTS_VARIABLE, HostMap
from worker.hosts.host_messages import ANSWERS, Declined, HostDescription, Join, Leaving, Ping, Pong
from worker.hosts.program_versions import program_versions
from worker.settings import Settings, SettingsError

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_PING_SECONDS = 10.0
_SILENCE_SECONDS = 60.0  # without an answer, after which a host is taken for lost
_PINGS = 30  # by which a host's clock is told


@dataclass(frozen=True)
class HostLost:
    """A further host has left, or does not answer any more; `why` names it."""

    why: str


class NodeHosts:
    """Threads call `on_event` with HostLost."""

    def __init__(self, settings: Settings, on_event: Callable[[HostLost], None]) -> None:
        """Raises SettingsError where this host lacks what its settings ask for."""
        self._settings, self._on_event = settings, on_event
        self.own = find_devices(settings)  # this host's
        self.devices = list(self.own)  # the node's
        self.lacking = beyond_hardware(self.own)  # of the node, as each of its hosts says
        self.map = HostMap()
        self._hosts: list[_FurtherHost] = []

    def join(self, stop_requested: Callable[[float], bool]) -> bool:
        """Return once all hosts answer, and False if `stop_requested` returns True meanwhile. Executors that start from now on
        know the node's devices by their environment. Raises SettingsError where a host refuses, or has devices of another
        type."""
        for address in self._settings.further_hosts:
            again = False
            while (host := self._reached(address, again)) is None:
                again = True
                if stop_requested(_RETRY_SECONDS):
                    return False
            self._add(host)
        self.map = HostMap.of(len(self.own), [(host.address, len(host.devices)) for host in self._hosts])
        if self._hosts:
            os.environ[HOSTS_VARIABLE] = self.map.model_dump_json()
        return True

    def _add(self, host: "_FurtherHost") -> None:
        if any(host.agent == other.agent for other in self._hosts):
            host.close()
            raise SettingsError(f"MOTET_WORKER_HOSTS: {host.address} is a host that was named before")
        self._hosts.append(host)
        if {one.type for one in host.devices} != {one.type for one in self.own}:
            raise SettingsError(
                f"MOTET_WORKER_HOSTS: {host.address} has {_types(host.devices)}, and this host {_types(self.own)}; a node's "
                "devices are of one type, so let it be a node of its own"
            )
        self.lacking |= frozenset(host.lacking)
        first = len(self.devices)
        most = self._settings.worker_memory_bytes or max((one.memory_bytes for one in host.devices), default=0)
        self.devices += [
            one.model_copy(update={"index": first + at, "memory_bytes": min(one.memory_bytes, most)})
            for at, one in enumerate(host.devices)
        ]
        host.watch(self._on_event)

    def clock_offset(self, address: str) -> float:
        """How many seconds later the boot clock of this host is than ours, at most by how long a message takes."""
        return next(host.clock_offset for host in self._hosts if host.address == address)

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    def _reached(self, address: str, again: bool) -> "_FurtherHost | None":
        try:
            return _FurtherHost(self._settings, address)
        except HostUnreachable as error:
            if not again:
                log.warning("waiting for the node's host at %s: %s", address, error)
            return None
        except HostRefused as error:
            raise SettingsError(f"MOTET_WORKER_HOSTS: {error}") from None
        except OSError as error:
            raise SettingsError(f"MOTET_WORKER_DIR: cannot write to {self._settings.scratch}: {error.strerror}") from None


class _FurtherHost:
    def __init__(self, settings: Settings, address: str) -> None:
        """Raises HostUnreachable, HostRefused, and OSError where the node's folder cannot be written to."""
        if settings.worker_hosts_secret is None:
            raise SettingsError("MOTET_WORKER_HOSTS_SECRET is not set; hosts of a node share it")
        self.address = address
        self._offsets: deque[float] = deque(maxlen=_PINGS)
        self._closing = threading.Event()
        self._link = connect(address, settings.worker_hosts_secret)
        probe = settings.scratch / f"host-{secrets.token_hex(8)}"
        try:
            probe.touch()
            self._link.send(Join(versions=program_versions(), folder=str(settings.scratch), probe=probe.name))
            match self._link.receive(ANSWERS):
                case HostDescription() as found:
                    self.devices, self.lacking, self.agent = found.devices, found.lacking, found.agent
                case Declined() as declined:
                    raise HostRefused(f"{address}: {declined.why}")
                case other:
                    raise HostRefused(f"{address} answers with {other.kind}")
            self._link.set_timeout(_SILENCE_SECONDS)
            self._ping()
        except BaseException:
            self._link.close()
            raise
        finally:
            probe.unlink(missing_ok=True)
        log.info("host %s has %d device(s)", address, len(self.devices))

    @property
    def clock_offset(self) -> float:
        """As of NodeHosts.clock_offset."""
        return max(self._offsets)  # the answer that took the shortest

    def watch(self, on_event: Callable[[HostLost], None]) -> None:
        """Begin to ping."""
        threading.Thread(target=self._watch, args=(on_event,), name=f"host {self.address}", daemon=True).start()

    def close(self) -> None:
        """End the host's processes for this node."""
        self._closing.set()
        with suppress(OSError):
            self._link.socket.shutdown(socket.SHUT_RDWR)
        self._link.close()

    def _watch(self, on_event: Callable[[HostLost], None]) -> None:
        try:
            while not self._closing.wait(_PING_SECONDS):
                self._ping()
        except (HostUnreachable, HostRefused) as error:
            if not self._closing.is_set():
                on_event(HostLost(f"a host of this node is lost: {error}"))

    def _ping(self) -> None:
        self._link.send(Ping())
        match self._link.receive(ANSWERS):
            case Pong(boot_time=there):
                # as of the moment of arrival: a deadline that is told there is never later than it is here
                self._offsets.append(there - boot_now())
            case Leaving():
                raise HostUnreachable(f"{self.address} was asked to end")
            case other:
                raise HostRefused(f"{self.address} answers a ping with {other.kind}")


def _types(devices: list[Device]) -> str:
    return " and ".join(sorted({one.type for one in devices})) or "none"
