"""The base that an executor holds: fetched to this node, loaded onto the devices of its placements, checked, with its kernels
compiled. Placements are prepared on it at once, each in a thread of its own; another base takes its place once they are."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contract.messages.placement_messages import BaseModelRef
from worker.compilation.kernel_compiler import KernelCompiler, Wait
from worker.data.token_stream import TokenStream
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
        self._changed = threading.Condition()  # of the two below
        self._taken, self._uses = False, 0  # whether somebody has the turn; uses of the base, which only who has it adds to
        self.loaded: LoadedBase | None = None  # changed by who has the turn

    @contextmanager
    def use(self, ref: BaseModelRef, devices: PlacementDevices, lease: Lease, wanted: Wanted) -> Iterator["BaseUse"]:
        """The base on these devices, for the body: no other takes its place meanwhile. Waits for the end of all uses of
        another, and loads it unless it is there. Its revision is being checked, and its kernels compiled, from then on. Raises
        as RankGroup.load, and LeaseNotHeld."""
        with self.turn(lease.check, lambda: not self._uses or self._is_loaded(ref, devices)):
            compiled = self._load(ref, devices, lease, wanted)
            assert self.loaded is not None, "it was loaded"
            used = BaseUse(self, self._fetch, self.loaded, compiled, lease)
            with self._changed:
                self._uses += 1
        try:
            yield used
        finally:
            with self._changed:
                self._uses -= 1
                self._changed.notify_all()

    @contextmanager
    def turn(self, check: Callable[[], object], due: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Within it, no other thread has the turn: to load, to measure, to call ranks. Taken as soon as `due` says so; what
        `check` raises meanwhile is raised."""
        while not self._take(due):
            check()
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()

    def _take(self, due: Callable[[], bool]) -> bool:
        with self._changed:
            found = self._changed.wait_for(lambda: not self._taken and due(), _CHECK_SECONDS)
            self._taken = self._taken or found
            return found

    def _is_loaded(self, ref: BaseModelRef, devices: PlacementDevices) -> bool:
        if self.loaded is None or self.loaded.base.proved_wrong:
            return False
        return (self.loaded.base.ref.identity, self.loaded.devices) == (ref.identity, devices.devices)

    def _load(self, ref: BaseModelRef, devices: PlacementDevices, lease: Lease, wanted: Wanted) -> Wait:
        """Returns what waits for its kernels. A base that others use stays, also if it has proved another by now: they hold its
        memory, and are told."""
        ref = self._fetch.local(ref, lease)
        moments = self._settings.worker_moments
        device, source = devices.devices[0], Path(ref.source)
        compiled = self._kernels.begin(source, device, wanted.possible_ranks, wanted.dropouts, moments == "8bit")
        if self._uses:
            return compiled
        if self.loaded is not None and self.loaded.base.proved_wrong:
            self.drop()  # its folder may have been brought back
        if not self._is_loaded(ref, devices):
            self.loaded = None  # the next base needs its memory
            with self._fetch.telling(lease) as tell:
                self.loaded = self._ranks.load(ref, devices.devices, self._settings, wanted, tell, devices.hosts)
        return compiled

    def close_streams(self, placement: str) -> None:
        """Close the placement's streams on the other ranks: it will not begin."""
        with self.turn(lambda: None):
            if self.loaded is not None:
                self.loaded.close_streams(placement)

    def drop(self) -> None:
        """For who has the turn."""
        self.loaded = None
        self._ranks.close()

    def close(self) -> None:
        """End the other ranks."""
        self._ranks.close()


class BaseUse:
    """A loaded base while one placement is prepared on it."""

    def __init__(self, base: ExecutorBase, fetch: BaseFetch, loaded: LoadedBase, compiled: Wait, lease: Lease) -> None:
        self.loaded = loaded
        self._base, self._fetch, self._compiled, self._lease = base, fetch, compiled, lease

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within it, no other placement is measured, and none calls ranks. Raises BaseError where the weights have been found
        not to be the base's, and LeaseNotHeld."""
        with self._base.turn(self._lease.check):
            if self._base.loaded is not self.loaded:
                raise self._wrong()
            yield

    def await_revision(self) -> None:
        """Wait until its weights are known to be the base's; nothing may be trained before. Raises BaseError where they are
        not, after which no base is loaded, and LeaseNotHeld."""
        base = self.loaded.base
        if not base.checked.done():
            with self._fetch.telling(self._lease) as tell:
                tell(f"base model {base.ref.name}: loaded; its weights are still being checked")
                while not wait([base.checked], _CHECK_SECONDS).done:
                    self._lease.check()
        if base.proved_wrong:
            with self.turn():
                self._base.drop()
            raise self._wrong()

    def _wrong(self) -> BaseError:
        return BaseError(str(self.loaded.base.checked.exception()))  # not that itself: its traceback would hold what is dropped

    def await_kernels(self) -> None:
        """Wait until its kernels are compiled. Raises LeaseNotHeld."""
        name = self.loaded.base.ref.name
        with self._fetch.telling(self._lease) as tell:
            self._compiled(self._lease.check, lambda: tell(f"base model {name}: loaded; its kernels are being compiled"))

    def open_stream(self, stream: TokenStream) -> None:
        """Have the other ranks map it. Raises FileNotFoundError where its folder was removed meanwhile, and as `turn`."""
        if self.loaded.ranks:
            with self.turn():
                self.loaded.open_stream(self._lease.placement_id, stream)

    @contextmanager
    def streams_kept_if_done(self) -> Iterator[None]:
        """Close the placement's streams on the other ranks if the body raises."""
        with ExitStack() as undone:
            undone.callback(self._base.close_streams, self._lease.placement_id)
            yield
            undone.pop_all()
