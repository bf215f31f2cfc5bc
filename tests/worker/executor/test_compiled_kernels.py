"""A placement's kernels are compiled beside its base's loading, for all that its jobs may become, and waited for under its
lease."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.inside import Inside
from worker.compilation.kernel_compiler import KernelCompiler
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.executor.preparation.placement_wants import wants_of
from worker.pipe_messages import ExecutorProgress, PlacementEnded
from worker.replicas.ranks.rank_group import RankGroup

PATIENCE = 60.0
SPACE = {"learning_rate": [3e-3], "rank": [4, 8, 64], "batch_size": [2], "dropout": [0.0, 0.1]}


def test_jobs_that_are_still_to_be_proposed_may_take_all_of_their_space(placing):
    placement = placing({**SPACE, "rank": [8], "dropout": [0.1]})
    assert (wants_of(placement).possible_ranks, wants_of(placement).dropouts) == ({8}, {True})
    both = placing(SPACE)
    assert (wants_of(both).possible_ranks, wants_of(both).dropouts) == ({4, 8, 64}, {False, True})
    unsaid = both.model_copy(update={"jobs": [job.model_copy(update={"proposed": False}) for job in both.jobs[:1]]})
    assert (wants_of(unsaid).possible_ranks, wants_of(unsaid).dropouts) == ({4, 8, 64}, {False, True})
    assert set(wants_of(unsaid).ranks) == {64}


@pytest.fixture
def told() -> threading.Event:
    """That kernels are being compiled."""
    return threading.Event()


@pytest.fixture
def order(monkeypatch, told) -> list[Any]:
    """What happened, in order; the compiler tells that it is waited for, and asks whether to go on."""
    found: list[Any] = []
    load = RankGroup.load

    def begin(self: object, source: object, device: object, ranks: Any, dropouts: Any, eight_bit: bool) -> Any:
        found.append(("begins", set(ranks), set(dropouts), eight_bit))

        def wait(check: Callable[[], object], tell: Callable[[], object]) -> None:
            tell()
            assert told.wait(PATIENCE)
            check()
            found.append("compiled")

        return wait

    def loaded(self: RankGroup, *args: Any, **named: Any) -> Any:
        found.append("loads")
        return load(self, *args, **named)

    monkeypatch.setattr(KernelCompiler, "begin", begin)
    monkeypatch.setattr(RankGroup, "load", loaded)
    return found


def test_they_are_begun_before_the_base_is_loaded_and_there_before_anything_trains(fleet, placing, tmp_path, order, told):
    inside = Inside(fleet, tmp_path)

    def on_news(news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, ExecutorProgress) and any(
            "loaded; its kernels are being" in text for text in news.loading.values()
        ):
            told.set()

    inside.on_news = on_news
    (reported,) = inside.run(placing({**SPACE, "rank": [4, 8]}, training={"max_steps": 2}))
    assert order == [("begins", {4, 8}, {False, True}, False), "loads", "compiled"]
    assert len(reported.ended) == 4


def test_a_placement_whose_lease_ends_meanwhile_leaves(fleet, placing, tmp_path, order, monkeypatch):
    def begin(self: object, *args: Any) -> Any:
        def wait(check: object, tell: object) -> None:
            raise LeaseNotHeld("its lease ended")

        return wait

    monkeypatch.setattr(KernelCompiler, "begin", begin)
    inside = Inside(fleet, tmp_path)
    inside.run(placing(SPACE))
    (ended,) = [news for news in inside.news if isinstance(news, PlacementEnded)]
    assert (ended.lost, ended.detail) == (True, "its lease ended while it was prepared")
