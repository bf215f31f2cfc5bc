"""The base that an executor holds: fetched to this node, loaded onto the devices of its placements, checked, with its kernels
compiled. Used by the preparation thread alone, but for `close`."""

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contract.messages.placement_messages import BaseModelRef
from worker.compilation.kernel_compiler import KernelCompiler, Wait, nothing_to_wait_for
from worker.executor.placement.placement_lease import Lease
from worker.executor.preparation.base_fetch import BaseFetch
from worker.replicas.base_loader import BaseError
from worker.replicas.ranks.placement_devices import PlacementDevices
from worker.replicas.ranks.rank_group import LoadedBase, RankGroup
from worker.replicas.sharding_choice import Wanted
from worker.settings import Settings

_CHECK_SECONDS = 1.0  # between looks at a lease


class ExecutorBase:
    """on_silence: as of RankGroup."""

    def __init__(self, settings: Settings, fetch: BaseFetch, on_silence: Callable[[float], None]) -> None:
        self._settings, self._fetch = settings, fetch
        self._ranks, self._kernels = RankGroup(on_silence), KernelCompiler()
        self._compiled: Wait = nothing_to_wait_for
        self.loaded: LoadedBase | None = None

    def load(self, ref: BaseModelRef, devices: PlacementDevices, lease: Lease, wanted: Wanted) -> LoadedBase:
        """The base on these devices, loaded unless it is there; one loaded before leaves. Its revision is being checked, and
        its kernels compiled, from now on: see below. Raises as RankGroup.load, and LeaseNotHeld."""
        ref = self._fetch.local(ref, lease)
        moments = self._settings.worker_moments
        device, source = devices.devices[0], Path(ref.source)
        self._compiled = self._kernels.begin(source, device, wanted.possible_ranks, wanted.dropouts, moments == "8bit")
        if self.loaded is not None and self.loaded.base.proved_wrong:
            self._drop()  # its folder may have been brought back
        if self.loaded is None or (self.loaded.base.ref.identity, self.loaded.devices) != (ref.identity, devices.devices):
            self.loaded = None  # the next base needs its memory
            with self._fetch.telling(lease) as tell:
                self.loaded = self._ranks.load(ref, devices.devices, self._settings, wanted, tell, devices.hosts)
        return self.loaded

    def await_revision(self, lease: Lease) -> None:
        """Wait until the weights of the last load are known to be the base's; nothing may be trained before. Raises BaseError
        where they are not, after which no base is loaded, and LeaseNotHeld."""
        assert self.loaded is not None, "a base was loaded"
        base = self.loaded.base
        if not base.checked.done():
            with self._fetch.telling(lease) as tell:
                tell(f"base model {base.ref.name}: loaded; its weights are still being checked")
                while not wait([base.checked], _CHECK_SECONDS).done:
                    lease.check()
        if (error := base.checked.exception()) is not None:
            self._drop()
            raise BaseError(str(error)) from None  # not the future's own, whose traceback would hold what is dropped

    def await_kernels(self, lease: Lease) -> None:
        """Wait until those of the last load are compiled. Raises LeaseNotHeld."""
        assert self.loaded is not None, "a base was loaded"
        name = self.loaded.base.ref.name
        with self._fetch.telling(lease) as tell:
            self._compiled(lease.check, lambda: tell(f"base model {name}: loaded; its kernels are being compiled"))

    @contextmanager
    def streams_kept_if_done(self, placement: str) -> Iterator[None]:
        """Close the placement's streams on the other ranks if the body raises."""
        with ExitStack() as undone:
            undone.callback(self.close_streams, placement)
            yield
            undone.pop_all()

    def close_streams(self, placement: str) -> None:
        """Close the placement's streams on the other ranks: it will not begin."""
        if self.loaded is not None:
            self.loaded.close_streams(placement)

    def _drop(self) -> None:
        self.loaded = None
        self._ranks.close()

    def close(self) -> None:
        """End the other ranks."""
        self._ranks.close()
