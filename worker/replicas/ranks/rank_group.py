"""The ranks of one executor beyond its own process, and a base on all its devices. Knows no tasks."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from contract.messages.placement_messages import BaseModelRef
from worker.data.token_stream import TokenStream
from worker.policy.adapter_memory_model import Capacity
from worker.replicas.base_loader import BaseCopy, load_base
from worker.replicas.memory_profile import Profiles, capacity_of, memory_of
from worker.replicas.ranks.rank_process import RankProcess
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.settings import Settings

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, eq=False)
class LoadedBase:
    """A base on all devices of an executor. base: on the first, in this process. ranks: the processes of the others."""

    base: BaseCopy
    devices: tuple[torch.device, ...]
    ranks: tuple[RankProcess, ...] = ()

    def capacities(self, profiles: Profiles, settings: Settings, rank: int) -> tuple[Capacity, ...]:
        """What each replica can hold, of adapters of up to `rank`."""
        count = len(self.devices)
        own = capacity_of(profiles, self.base.trainer, settings, count, rank)
        others = [each.call("capacity", profiles, _bare(settings), count, rank) for each in self.ranks]
        return (own, *others)

    def open_stream(self, placement: str, stream: TokenStream) -> None:
        """Have every rank map the stream, for as long as the placement stays. Raises FileNotFoundError where its folder was
        removed meanwhile."""
        for each in self.ranks:
            each.call("open_stream", placement, stream.folder)


class RankGroup:
    """Starts and ends the processes. on_silence: as of RankProcess."""

    def __init__(self, on_silence: Callable[[float], None]) -> None:
        self._on_silence = on_silence
        self._ranks: list[RankProcess] = []
        self._memory = SharedHostMemory(lends=False)

    def load(self, ref: BaseModelRef, devices: Sequence[torch.device], settings: Settings) -> LoadedBase:
        """Load the base onto each device: the first in this process, and each other in one of its own. Ends earlier ranks.
        Raises BaseError, or Crowded."""
        self.close()
        try:
            for environment in environments(len(devices), os.environ)[1:]:  # they import torch while this process loads
                self._ranks.append(RankProcess(environment, self._memory, self._on_silence))
            base = load_base(ref, devices[0], settings.worker_moments == "8bit", memory_of(devices[0], settings))
            threads = torch.get_num_threads()
            loading = [
                rank.begin("load", ref, device, threads, _bare(settings))
                for rank, device in zip(self._ranks, devices[1:], strict=True)
            ]
            for loaded in loading:
                loaded()
        except BaseException:
            self.close()
            raise
        return LoadedBase(base, tuple(devices), tuple(self._ranks))

    def close(self) -> None:
        """End all ranks."""
        while self._ranks:
            self._ranks.pop().close()


def environments(world: int, given: Mapping[str, str]) -> list[dict[str, str]]:
    """torchrun's variables for each rank of a node. A rendezvous address that is given stays."""
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    address = {
        "MASTER_ADDR": given.get("MASTER_ADDR", _LOOPBACK),
        "MASTER_PORT": given.get("MASTER_PORT") or str(_free_port()),
    }
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **sizes, **address} for rank in range(world)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _bare(settings: Settings) -> Settings:
    """What a rank needs of them: no secret."""
    return settings.model_copy(update={"join_token": None, "hf_token": None})
