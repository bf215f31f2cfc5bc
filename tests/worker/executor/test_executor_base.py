"""Placements are prepared on one base at once; another base waits for them."""

import shutil
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of
from tests.worker.fleet import JOIN_TOKEN
from worker.boot_clock import boot_now
from worker.data.node_cache import NodeCache
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.preparation.base_fetch import BaseFetch
from worker.executor.preparation.executor_base import BaseUse, ExecutorBase
from worker.replicas.base_loader import BaseError
from worker.replicas.ranks.placement_devices import devices_of
from worker.replicas.ranks.rank_group import RankGroup
from worker.replicas.sharding_choice import NOTHING_ELSE
from worker.settings import Settings

PATIENCE = 60.0


class Preparations:
    """Of an executor on a CPU; each `begin` enters a use in a thread of its own, which lasts until `end`."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(
            api_url="http://localhost", join_token=JOIN_TOKEN, worker_dir=folder, worker_device="cpu", worker_threads=1
        )  # type: ignore[arg-type]
        fetch = BaseFetch(self.settings, None, NodeCache(folder / "tenants"), lambda: None)  # type: ignore[arg-type]
        self.base = ExecutorBase(self.settings, fetch, lambda silent: None)
        self.leases: list[Lease] = []
        self._ends: list[threading.Event] = []
        self._pool = ThreadPoolExecutor(8)

    def begin(self, ref: BaseModelRef, within: Callable[[BaseUse], object] = lambda used: None):
        """Returns an event that is set within the use, and the future of `within`, which is called at its end."""
        lease, began, ends = Lease(f"p{len(self.leases)}", 1, "token", boot_now() + 3600), threading.Event(), threading.Event()
        self.leases.append(lease)
        self._ends.append(ends)

        def prepare() -> object:
            with self.base.use(ref, devices_of([0], self.settings), lease, NOTHING_ELSE) as used:
                began.set()
                assert ends.wait(PATIENCE)
                return within(used)

        return began, self._pool.submit(prepare)

    def end(self, number: int) -> None:
        self._ends[number].set()

    def close(self) -> None:
        for lease, ends in zip(self.leases, self._ends, strict=True):
            lease.release()
            ends.set()
        self._pool.shutdown()


@pytest.fixture
def preparations(tmp_path: Path):
    made = Preparations(tmp_path)
    yield made
    made.close()


@pytest.fixture
def other_base(tiny_base: BaseModelRef, tmp_path: Path) -> BaseModelRef:
    folder = shutil.copytree(tiny_base.source, tmp_path / "other")
    return BaseModelRef(name="other", source=str(folder), revision=revision_of(folder))


def test_placements_are_prepared_on_one_base_at_once(preparations: Preparations, tiny_base: BaseModelRef) -> None:
    begun = [preparations.begin(tiny_base, lambda used: used.loaded) for _ in range(3)]
    for began, _ in begun:
        assert began.wait(PATIENCE)
    for number in range(3):
        preparations.end(number)
    assert len({id(loaded.result(PATIENCE)) for _, loaded in begun}) == 1


def test_another_base_takes_its_place_once_all_have_ended(
    preparations: Preparations, tiny_base: BaseModelRef, other_base: BaseModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bases may not fit into the memory."""
    alive, load = [], RankGroup.load

    def loaded(self, *args, **named):
        alive.append(sum(trainer() is not None for trainer in trainers))
        made = load(self, *args, **named)
        trainers.append(weakref.ref(made.base.trainer))
        return made

    trainers: list[weakref.ref] = []
    monkeypatch.setattr(RankGroup, "load", loaded)
    first, second = preparations.begin(tiny_base), preparations.begin(tiny_base)
    assert first[0].wait(PATIENCE)
    assert second[0].wait(PATIENCE)
    began, third = preparations.begin(other_base, lambda used: used.loaded.base.ref.name)
    preparations.end(0)
    first[1].result(PATIENCE)
    assert not began.wait(0.2)
    preparations.end(1)
    preparations.end(2)
    assert third.result(PATIENCE) == "other"
    assert alive == [0, 0]


def test_a_lease_that_ends_ends_the_wait_for_another_base(
    preparations: Preparations, tiny_base: BaseModelRef, other_base: BaseModelRef
) -> None:
    assert preparations.begin(tiny_base)[0].wait(PATIENCE)
    began, waiting = preparations.begin(other_base)
    preparations.leases[1].release()
    with pytest.raises(LeaseNotHeld):
        waiting.result(PATIENCE)
    assert not began.is_set()


def test_one_at_a_time_has_the_turn(preparations: Preparations, tiny_base: BaseModelRef) -> None:
    inside, leave = [threading.Event(), threading.Event()], threading.Event()

    def measure(number: int, used: BaseUse) -> None:
        with used.turn():
            inside[number].set()
            assert leave.wait(PATIENCE)

    begun = [preparations.begin(tiny_base, partial(measure, number)) for number in range(2)]
    preparations.end(0)
    assert inside[0].wait(PATIENCE)
    preparations.end(1)
    assert not inside[1].wait(0.2)
    leave.set()
    for _, done in begun:
        done.result(PATIENCE)


def test_a_base_that_proves_another_as_it_is_asked_for_is_not_loaded_beside_itself(
    preparations: Preparations, changed: BaseModelRef, slow_check: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, loads, load = BaseFetch.local, list[int](), RankGroup.load

    def proved(fetch: BaseFetch, ref: BaseModelRef, lease: Lease) -> BaseModelRef:
        if loads:
            slow_check.set()
            assert preparations.base.loaded is not None
            assert preparations.base.loaded.base.checked.exception(PATIENCE) is not None
        return local(fetch, ref, lease)

    monkeypatch.setattr(BaseFetch, "local", proved)
    monkeypatch.setattr(RankGroup, "load", lambda *args, **named: loads.append(1) or load(*args, **named))
    both = [preparations.begin(changed, BaseUse.await_revision) for _ in range(2)]
    for number, (began, told) in enumerate(both):
        assert began.wait(PATIENCE)
        preparations.end(number)
        with pytest.raises(BaseError, match="have revision"):
            told.result(PATIENCE)
    assert len(loads) == 1


def test_all_on_a_base_that_proves_another_are_told_and_the_next_loads_it_anew(
    preparations: Preparations,
    tiny_base: BaseModelRef,
    changed: BaseModelRef,
    slow_check: threading.Event,
) -> None:
    def turn(used: BaseUse) -> None:
        with used.turn():
            pass

    awaits, calls = preparations.begin(changed, BaseUse.await_revision), preparations.begin(changed, turn)
    assert awaits[0].wait(PATIENCE)
    assert calls[0].wait(PATIENCE)
    slow_check.set()
    preparations.end(0)
    with pytest.raises(BaseError, match="have revision"):
        awaits[1].result(PATIENCE)
    shutil.copytree(tiny_base.source, changed.source, dirs_exist_ok=True)
    began, right = preparations.begin(changed, BaseUse.await_revision)
    assert not began.wait(0.2), "one of them still uses it"
    preparations.end(1)
    with pytest.raises(BaseError, match="have revision"):
        calls[1].result(PATIENCE)
    preparations.end(2)
    right.result(PATIENCE)


def test_a_load_that_fails_leaves_the_turn_to_the_next(
    preparations: Preparations, tiny_base: BaseModelRef, tmp_path: Path
) -> None:
    missing = tiny_base.model_copy(update={"source": str(tmp_path / "missing")})
    with pytest.raises(BaseError):
        preparations.begin(missing)[1].result(PATIENCE)
    assert preparations.begin(tiny_base)[0].wait(PATIENCE)
