"""Memory that generation and training want at once: training keeps its bits and its passes, texts come all the same."""

import weakref
from typing import Any

import pytest

from tests.worker.corpus import rows
from tests.worker.executor.completion_work import LONG, answers, chat
from tests.worker.executor.text_evaluations import ASKED, CALM, SPACE, evaluated, passes_take
from tests.worker.inside import Inside
from worker.adapters.capacity_tracker import CapacityTracker
from worker.executor.completions import completion_batch
from worker.executor.generation.generation_turns import GenerationTurns
from worker.generate.paged_cache import PagedCache
from worker.model.plain.trainer import OutOfMemory, Trainer
from worker.policy.generation_memory import PAGE_TOKENS
from worker.replicas.replica_set import Replicas

PLAN = {"early_exit": CALM, "training": {"epochs": 4}}
LATER = {**PLAN, "evaluation": {**ASKED, "max_new_tokens": 40, "milestones": [0.2, 0.5]}}


@pytest.fixture
def shrunk(monkeypatch) -> list[Any]:
    """What made micro-batches smaller."""
    found, real = list[Any](), CapacityTracker.shrink_after_oom
    monkeypatch.setattr(CapacityTracker, "shrink_after_oom", lambda *what: found.append(what) or real(*what))
    return found


def test_where_training_lacks_memory_generation_gives_way_first(fleet, placing, tmp_path, monkeypatch, shrunk) -> None:
    """No pass finds memory while a cache is held: no job fails, none trains in shorter passes, and all texts are there."""
    data = rows(40, seed=1)
    (plenty,) = Inside(fleet, tmp_path / "plenty", worker_completion_share=0.5).run(placing(SPACE, data, **LATER))
    caches, refused, train, make = weakref.WeakSet(), [], Trainer.train, PagedCache.__init__

    def made(self, *what):
        make(self, *what)
        caches.add(self)

    def scarce(self, segments, *form):
        if len(caches):
            refused.append(True)
            raise OutOfMemory(sum(example.length for segment in segments for example in segment.examples))
        return train(self, segments, *form)

    def stepping(self, jobs, *how):
        (stepped,), lost = step(self, jobs, *how)
        stepped.seconds = 4.0  # earns one pass, so that none of the batches is over before a step
        return [stepped], lost

    step = Replicas.step
    monkeypatch.setattr(Replicas, "step", stepping)
    monkeypatch.setattr(PagedCache, "__init__", made)
    monkeypatch.setattr(Trainer, "train", scarce)
    inside = Inside(fleet, tmp_path / "short", worker_completion_share=0.5)
    (short,) = inside.run(placing(SPACE, data, **LATER), prepare=passes_take(1.0))
    assert refused
    assert shrunk == []
    assert short.curves == plenty.curves
    for job, event in evaluated(plenty).items():
        assert (evaluated(short)[job].error, evaluated(short)[job].samples) == (None, event.samples)


def test_a_cache_that_finds_no_memory_costs_training_nothing(fleet, placing, tmp_path, monkeypatch, shrunk) -> None:
    data = rows(40, seed=1)
    (alone,) = Inside(fleet, tmp_path / "alone").run(placing(SPACE, data, **PLAN))

    def none(self, *what):
        raise MemoryError("out of memory")

    monkeypatch.setattr(PagedCache, "__init__", none)
    (beside,) = Inside(fleet, tmp_path / "beside", worker_completion_share=0.5).run(placing(SPACE, data, **LATER))
    assert shrunk == []
    assert beside.curves == alone.curves
    assert [end.kind for end in beside.ended.values()] == ["job_completed"] * 2
    assert all("no memory to generate" in event.error for event in evaluated(beside).values())


def small_room(monkeypatch, pages: int) -> None:
    """Training leaves so many pages."""
    monkeypatch.setattr(
        GenerationTurns, "_room", lambda self, replicas, runs, kind, sequences: pages * shape_of(replicas).page_bytes
    )


def shape_of(replicas):
    return completion_batch.generation_shape(replicas.base.trainer)


def test_an_evaluation_with_less_room_runs_in_smaller_waves(fleet, placing, tmp_path, monkeypatch) -> None:
    (plenty,) = Inside(fleet, tmp_path / "a").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    sizes, real = [], PagedCache.__init__

    def sized(self, backbone, pages, page_tokens):
        sizes.append(pages)
        real(self, backbone, pages, page_tokens)

    monkeypatch.setattr(PagedCache, "__init__", sized)
    small_room(monkeypatch, 3)
    (short,) = Inside(fleet, tmp_path / "b").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    assert sizes
    assert max(sizes) <= 3
    for job in (None, 0, 1):
        assert evaluated(short)[job].samples == evaluated(plenty)[job].samples


def test_who_asks_for_more_than_training_leaves_is_told_how_much_that_is(fleet, placing, tmp_path, monkeypatch) -> None:
    """What takes no more than the floor is answered all the same."""
    small_room(monkeypatch, 0)
    monkeypatch.setattr(completion_batch, "FLOOR_TOKENS", PAGE_TOKENS)
    works = [chat("fits", max_tokens=3), chat("large", max_tokens=150)]
    said = answers(fleet, tmp_path, placing(SPACE, early_exit={**CALM, "eval_every": 400}, training=LONG), works)
    assert said["fits"].last.failed is None
    failed = said["large"].last.failed
    assert failed.code == "no_memory"
    assert "of keys and values, and training leaves" in failed.message
    assert "lower max_tokens" in failed.message
