"""The ranks of one executor beyond its own process, and a base on all its devices. Knows no tasks."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import SecretStr

from contract.messages.placement_messages import BaseModelRef
from worker.data.object_cache import OBJECTS, ObjectCache
from worker.data.token_stream import TokenStream
from worker.hosts.host_link import HostUnreachable, interface_of, own_address
from worker.model.sharding.rank_collectives import COLLECTIVE_SECONDS, RankCollectives, open_store
from worker.model.sharding.weight_shards import WeightShards
from worker.policy.adapter_memory_model import Capacity
from worker.replicas.base_loader import BaseError, Crowded, DeviceBase, load_base, raise_wrong, threads_wanted
from worker.replicas.failed_passes import FailedPasses
from worker.replicas.load_progress import LoadProgress, Tell
from worker.replicas.memory_profile import Profiles, capacity_of, limit_memory, memory_of
from worker.replicas.ranks.rank_process import RankProcess, check_running
from worker.replicas.ranks.rank_start import RankLost
from worker.replicas.ranks.rank_watch import RankWatch
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.replicas.sharding_choice import NOTHING_ELSE, ChosenSharding, Wanted, choose_sharding
from worker.settings import Settings

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, eq=False)
class LoadedBase:
    """A base on all devices of an executor. base: on the first, in this process. ranks: the processes of the others. sharding:
    of the base over them; None: each has a copy."""

    base: DeviceBase
    devices: tuple[torch.device, ...]
    ranks: tuple[RankProcess, ...] = ()
    sharding: ChosenSharding | None = None

    @property
    def sentence(self) -> str | None:
        """How the devices share the base; None: they do not."""
        return self.sharding.sentence if self.sharding is not None else None

    def failed_passes(self, scratch: ObjectCache) -> FailedPasses | None:
        """Where passes over a sharded base that found no memory are remembered."""
        return FailedPasses(scratch, self.base.ref, self.devices[0], len(self.devices)) if self.sharding is not None else None

    def capacities(self, profiles: Profiles, settings: Settings, rank: int) -> tuple[Capacity, ...]:
        """What each replica can hold, of adapters of up to `rank`."""
        count = len(self.devices)
        own = capacity_of(profiles, self.base.trainer, settings, count, rank)
        failed = self.failed_passes(ObjectCache(settings.scratch / OBJECTS))
        own = failed.lowered(own) if failed is not None else own
        others = [each.call("capacity", profiles, _bare(settings), count, rank) for each in self.ranks]
        return (own, *others)

    def open_stream(self, placement: str, stream: TokenStream) -> None:
        """Have every rank map the stream, for as long as the placement stays. Raises FileNotFoundError where its folder was
        removed meanwhile."""
        for each in self.ranks:
            each.call("open_stream", placement, stream.folder)

    def close_streams(self, placement: str) -> None:
        """Have every rank close those that it opened for a placement which does not begin."""
        for each in self.ranks:
            each.post("close_streams", placement)


class RankGroup:
    """Starts and ends the processes. on_silence: as of RankProcess."""

    def __init__(self, on_silence: Callable[[float], None]) -> None:
        self._on_silence = on_silence
        self._ranks: list[RankProcess] = []
        self._closing = threading.Lock()  # the loop may end while a preparation loads, and closes what it has begun
        self._memory = SharedHostMemory(lends=False)
        self._watch: RankWatch | None = None
        self._collectives: RankCollectives | None = None
        self._address, self._several_hosts = _LOOPBACK, False  # this host's, for its ranks; whether there are others

    def load(
        self,
        ref: BaseModelRef,
        devices: Sequence[torch.device],
        settings: Settings,
        wanted: Wanted = NOTHING_ELSE,
        tell: Tell = lambda sentence: None,
        hosts: Sequence[str | None] = (),
    ) -> LoadedBase:
        """Load the base onto each device, whole or its shards: the first in this process, and each other in one of its own.
        Ends earlier ranks. wanted: as of choose_sharding. tell: as of LoadProgress. hosts: of each device, the address
        of its host's agent, or None for this host; left out, all are here. Raises BaseError, Crowded, or RankLost as soon as a
        rank is seen to have ended."""
        self.close()
        hosts = hosts or [None] * len(devices)
        others = [address for address in hosts if address is not None]
        self._address, self._several_hosts = _own_address(others) if others else _LOOPBACK, bool(others)
        sharding = choose_sharding(ref, devices, settings, wanted)
        if sharding is not None:
            log.info("base model %s: %s", ref.name, sharding.sentence)
        base: DeviceBase | None = None
        try:
            given = {"MASTER_ADDR": self._address, **os.environ}
            for environment, address in list(zip(environments(hosts, given), hosts, strict=True))[1:]:
                host = (address, _secret(settings)) if address is not None else None
                self._ranks.append(self._begun(ref, environment, host))  # it imports torch meanwhile
            # Ranks of a sharded base read each its own part; copies are read from the page cache, once the first has filled it.
            loading = self._begin_loading(ref, devices, settings, sharding) if sharding is not None else []
            tell(f"base model {ref.name}: its weights are being read and checked")
            eight_bit, progress = settings.worker_moments == "8bit", LoadProgress(f"base model {ref.name}", tell)

            def on_progress(loaded: int, whole: int) -> None:
                check_running(self._ranks)
                progress(loaded, whole)

            limit_memory(devices[0], settings)
            base = load_base(ref, devices[0], eight_bit, memory_of(devices[0], settings), sharding, on_progress)
            if self._ranks:
                tell(f"base model {ref.name}: loaded on the first of {len(devices)} devices; the others follow")
            if sharding is None:
                loading = self._begin_loading(ref, devices, settings, sharding)
            for loaded in loading:
                loaded()
            if base.trainer.backbone.shards is not None:
                self._connect(ref, base.trainer.backbone.shards)
        except (BaseError, Crowded):
            self.close()
            if base is not None:
                raise_wrong(base.checked)  # as load_base: a wrong revision is said rather than what another rank met
            raise
        except BaseException:
            self.close()
            raise
        return LoadedBase(base, tuple(devices), tuple(self._ranks), sharding)

    def _begun(self, ref: BaseModelRef, environment: Mapping[str, str], host: tuple[str, SecretStr] | None) -> RankProcess:
        try:
            return RankProcess(environment, self._memory, self._on_silence, host)
        except RankLost as error:
            raise Crowded(f"base model {ref.name}: {error}") from None

    def _begin_loading(
        self, ref: BaseModelRef, devices: Sequence[torch.device], settings: Settings, sharding: ChosenSharding | None
    ) -> list[Callable[[], None]]:
        """On the other ranks. What is returned waits for each."""
        threads = torch.get_num_threads()
        return [
            rank.begin("load", ref, device, threads, _bare(settings), sharding, rank.number)
            for rank, device in zip(self._ranks, devices[1:], strict=True)
        ]

    def _connect(self, ref: BaseModelRef, shards: WeightShards) -> None:
        """Join the ranks of a sharded base into one group. They meet at this host, so no address that is given matters."""
        address = self._address
        store = open_store(address, shards.world, COLLECTIVE_SECONDS)
        joining = [rank.begin("connect", address, store.port, self._several_hosts) for rank in self._ranks]
        interface = interface_of([address]) if self._several_hosts else None
        if self._several_hosts and interface is None:
            log.warning("no network interface has %s as its first address; gloo and NCCL choose one", address)
        self._collectives = RankCollectives(
            store, 0, shards.world, shards.device, COLLECTIVE_SECONDS, self._several_hosts, interface
        )
        shards.connect(self._collectives)
        for joined in joining:
            joined()
        shards.accompany = self._accompany
        with threads_wanted(ref):
            self._watch = RankWatch(shards, tuple(self._ranks), self._on_silence)

    def _accompany(self) -> None:
        for rank in self._ranks:
            rank.post("accompany")

    def close(self) -> None:
        """End all ranks. From any thread."""
        with self._closing:
            if self._watch is not None:
                self._watch.close()
            for rank in self._ranks:  # all at once: one that hangs keeps no other's device taken
                rank.kill()
            while self._ranks:
                self._ranks.pop().close()
            if self._collectives is not None:
                self._collectives.close()
            self._watch = self._collectives = None


def environments(hosts: Sequence[str | None], given: Mapping[str, str]) -> list[dict[str, str]]:
    """torchrun's variables for each rank, by the host that it is on. A rendezvous address that is given stays."""
    address = {
        "MASTER_ADDR": given.get("MASTER_ADDR", _LOOPBACK),
        "MASTER_PORT": given.get("MASTER_PORT") or str(_free_port()),
    }
    return [
        {
            **{"RANK": str(rank), "LOCAL_RANK": str(hosts[:rank].count(host))},
            **{"WORLD_SIZE": str(len(hosts)), "LOCAL_WORLD_SIZE": str(hosts.count(host))},
            **address,
        }
        for rank, host in enumerate(hosts)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _bare(settings: Settings) -> Settings:
    """What a rank needs of them: no secret. Its environment has none of the node's, either."""
    return settings.model_copy(update={"join_token": None, "hf_token": None, "worker_hosts_secret": None})


def _own_address(others: Sequence[str]) -> str:
    """Of this host, on the way to the first of these."""
    try:
        return own_address(others[0])
    except HostUnreachable as error:
        raise RankLost(f"no rank can be started there: {error}") from None


def _secret(settings: Settings) -> SecretStr:
    if settings.worker_hosts_secret is None:
        raise RankLost("MOTET_WORKER_HOSTS_SECRET is not set, so no other host starts a rank")
    return settings.worker_hosts_secret
