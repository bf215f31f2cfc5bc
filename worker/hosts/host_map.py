"""Which host has which of a node's devices, as its executors are told by their environment. Knows no torch."""

import os
from collections.abc import Iterable, Mapping

from contract.strict import Message
from worker.settings import Settings

HOSTS_VARIABLE = "MOTET_NODE_DEVICES"  # of executors alone; no setting
# settings that belong to the node, whatever a host's agent was started with
_NODE_SETTINGS = (
    *("MOTET_API_URL", "MOTET_NODE_NAME", "MOTET_WORKER_DIR", "MOTET_WORKER_MEMORY_BYTES", "MOTET_WORKER_PARK_BYTES"),
    *("MOTET_WORKER_STEP_TOKENS", "MOTET_WORKER_CHECKPOINT_SECONDS", "MOTET_WORKER_STOP_SECONDS", "MOTET_WORKER_MOMENTS"),
    *("MOTET_WORKER_CACHE_BYTES", "MOTET_WORKER_BASE_BYTES", "TRITON_CACHE_DIR"),
    *("MOTET_WORKER_COMPLETION_SHARE", "MOTET_WORKER_SHARDING", "MOTET_WORKER_RECOMPUTE", HOSTS_VARIABLE),
)


class HostDevices(Message):
    """Devices `first` up to, not with, `end` of the node. address: of the host's agent; None: the node's first host."""

    address: str | None
    first: int
    end: int


class HostMap(Message):
    """A node's hosts and their devices."""

    hosts: tuple[HostDevices, ...] = ()

    @classmethod
    def of(cls, own: int, others: Iterable[tuple[str, int]]) -> "HostMap":
        """The first host's number of devices, and each other's address and number."""
        hosts = [HostDevices(address=None, first=0, end=own)]
        for address, count in others:
            hosts.append(HostDevices(address=address, first=hosts[-1].end, end=hosts[-1].end + count))
        return cls(hosts=tuple(hosts))

    @classmethod
    def read(cls) -> "HostMap":
        """As this process's environment says. Without it, all devices are of one host."""
        return cls.model_validate_json(os.environ.get(HOSTS_VARIABLE, "{}"))

    def host(self, index: int) -> HostDevices:
        """The host of this device."""
        return next((host for host in self.hosts if host.first <= index < host.end), _ONLY)

    def address(self, indexes: Iterable[int]) -> str | None:
        """Of the host where the executor of these devices runs: that of the first. None: the node's first host."""
        return self.host(min(indexes, default=0)).address


_ONLY = HostDevices(address=None, first=0, end=2**31)


def node_environment(settings: Settings) -> dict[str, str]:
    """What a process of this node has in its environment on each of its hosts."""
    given = {name: os.environ[name] for name in _NODE_SETTINGS if name in os.environ}
    named = {"MOTET_API_URL": settings.api_url, "MOTET_NODE_NAME": settings.node_name}
    return {**given, **named, "MOTET_WORKER_DIR": str(settings.worker_dir)}


def merged(own: Mapping[str, str], of_node: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that an agent starts: its own, but for the node's settings, which are as they are there."""
    return {name: value for name, value in own.items() if name not in _NODE_SETTINGS} | dict(of_node)
