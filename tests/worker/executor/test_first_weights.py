"""First weights are drawn by threads beside what else is prepared."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from contract.job_config import JobConfig
from contract.messages.placement_messages import BaseModelRef
from tests.worker.inside import Inside
from worker.adapters.location_types import AdapterSpec
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.executor.preparation import first_weights as drawing
from worker.executor.preparation import placement_preparation
from worker.executor.preparation.first_weights import DrawnBytes, first_weights
from worker.executor.preparation.placement_preparation import Preparation
from worker.model.arena import Arena
from worker.replicas.base_loader import load_base

PATIENCE = 60.0


@pytest.fixture
def arena(tiny_base: BaseModelRef) -> Arena:
    base = load_base(tiny_base, torch.device("cpu"))
    base.checked.result()  # its threads are no part of what is tested
    return base.trainer.arena


def configs(*ranks: int) -> dict[int, JobConfig]:
    return {
        3 * index: JobConfig(learning_rate=1e-3, rank=rank, alpha=16, batch_size=1, seed=index)
        for index, rank in enumerate(ranks)
    }


def test_they_are_those_of_their_configurations_whoever_draws_first(arena: Arena) -> None:
    wanted = configs(4, 64, 8, 16, 8, 32)
    with first_weights(arena, wanted, None, 2**40) as drawn:
        found = drawn()
    assert found.keys() == wanted.keys()
    for index, config in wanted.items():
        assert torch.equal(found[index], AdapterSpec.of(config, None).first_weights(arena.layout))


def test_no_more_are_drawn_than_a_share_of_the_memory_holds(arena: Arena) -> None:
    two = 2 * 4 * (4 + 8) * arena.layout.width  # half of it, so that there is some for others
    with first_weights(arena, configs(4, 8, 4), None, two * drawing._SHARE) as drawn:
        assert set(drawn()) == {0, 3}
    with first_weights(arena, configs(4, 8, 4), None, two * drawing._SHARE - 1) as drawn:
        assert set(drawn()) == {0}


def test_preparations_share_that_memory(arena: Arena) -> None:
    held, memory = DrawnBytes(), 2 * 4 * 8 * arena.layout.width * drawing._SHARE
    with (
        first_weights(arena, configs(8), None, memory, held=held) as first,
        first_weights(arena, configs(4, 4), None, memory, held=held) as second,
        first_weights(arena, configs(4, 4), None, memory, held=held) as third,
    ):
        assert (set(first()), set(second()), set(third())) == ({0}, {0}, set())
    with first_weights(arena, configs(4, 4, 4), None, memory, held=held) as drawn:
        assert set(drawn()) == {0, 3}, "what the others held they gave back"


def test_they_are_drawn_beside_who_waits_later_and_as_many_at_once_as_there_are_threads(arena: Arena) -> None:
    meeting = threading.Barrier(drawing._THREADS + 1)
    with first_weights(
        arena, configs(*[4] * drawing._THREADS), None, 2**40, True, lambda: meeting.wait(PATIENCE) and None
    ) as drawn:
        meeting.wait(PATIENCE)
        assert len(drawn()) == drawing._THREADS


def test_what_ends_the_preparation_ends_the_drawing(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ends, shutdown = list[int](), threading.Event(), ThreadPoolExecutor.shutdown
    meeting = threading.Barrier(drawing._THREADS + 1)

    def before_each() -> None:
        begun.append(len(begun))
        meeting.wait(PATIENCE)
        assert ends.wait(PATIENCE)

    def then_go_on(pool: ThreadPoolExecutor, **how: bool) -> None:
        shutdown(pool, **{**how, "wait": False})
        ends.set()
        shutdown(pool)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", then_go_on)

    def prepare() -> None:
        with first_weights(arena, configs(*[4] * 3 * drawing._THREADS), None, 2**40, True, before_each):
            meeting.wait(PATIENCE)
            raise ValueError("no row is left")

    with pytest.raises(ValueError, match="no row is left"):
        prepare()
    assert len(begun) == drawing._THREADS, "those that had not begun are left out"


def test_a_lease_that_ends_is_raised_for_who_waits(arena: Arena) -> None:
    def before_each() -> None:
        raise LeaseNotHeld("its lease ended")

    with pytest.raises(LeaseNotHeld), first_weights(arena, configs(4), None, 2**40, True, before_each) as drawn:
        drawn()


def test_on_a_cpu_they_are_drawn_when_they_are_waited_for(arena: Arena) -> None:
    begun = list[int]()
    with first_weights(arena, configs(4, 8), None, 2**40, False, lambda: begun.append(1)) as drawn:
        assert not begun
        assert drawn().keys() == configs(4, 8).keys()


def test_they_are_drawn_while_rows_are_read(fleet, placing, tmp_path, monkeypatch) -> None:
    """On a GPU: on a CPU, which is where this runs, they are drawn when they are waited for."""
    drawn, real_rows, real_weights = threading.Event(), Preparation._rows, placement_preparation.first_weights

    def rows(self, used):
        assert drawn.wait(PATIENCE), "they are drawn once rows are read"
        return real_rows(self, used)

    def weights(arena, new, start, parked, at_once, before_each, held):
        return real_weights(arena, new, start, parked, True, lambda: drawn.set() or before_each(), held)

    monkeypatch.setattr(Preparation, "_rows", rows)
    monkeypatch.setattr(placement_preparation, "first_weights", weights)
    placement = placing({"learning_rate": [1e-3], "rank": [4], "batch_size": [1]}, training={"max_steps": 2})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    assert len(reported.ended) == 1
