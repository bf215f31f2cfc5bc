"""The devices of a placement, as the executor that trains it has them. Loads nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.hosts.host_map import HostMap
from worker.settings import Settings


@dataclass(frozen=True)
class PlacementDevices:
    """One replica on each. hosts: address of the agent of each device's host; None: this host."""

    devices: tuple[torch.device, ...]
    hosts: tuple[str | None, ...]


def devices_of(indexes: Sequence[int], settings: Settings) -> PlacementDevices:
    """The node's devices of these indexes; this process is on the host of the first. On a CPU, torch gets the threads of one
    slot."""
    found = [HostMap.read().host(index) for index in sorted(indexes)]
    hosts = tuple(None if host == found[0] else host.address for host in found)
    if settings.worker_device == "cpu" or not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(settings.worker_threads or max(1, cores // settings.worker_slots))
        return PlacementDevices((torch.device("cpu"),) * len(indexes), hosts)
    local = [index - host.first for index, host in zip(sorted(indexes), found, strict=True)]
    return PlacementDevices(tuple(torch.device("cuda", index) for index in local), hosts)
