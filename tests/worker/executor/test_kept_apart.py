"""Adapters that wait for their export or their texts: in main memory within its budget, in files beyond."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from contract.messages.report_messages import AdapterKept, TextsEvaluated
from tests.worker.corpus import rows
from tests.worker.executor.text_evaluations import ASKED
from tests.worker.inside import Inside, resumed
from worker.adapters.tiered_adapter_store import AdapterStore
from worker.adapters.weights_copies import WeightsCopy
from worker.executor import artifact_uploader
from worker.executor.evaluation.text_scoring import TextEvaluations
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.executor.training_loop import Executor
from worker.pipe_messages import Detach, Stop

pytestmark = pytest.mark.usefixtures("measured_once")

RATES = [1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5]
SPACE = {"learning_rate": RATES, "rank": [8], "batch_size": [4]}
SPEC = {"early_exit": {"policy": "none", "eval_every": 4}, "training": {"max_steps": 8}}
HALFWAY = {**ASKED, "milestones": [0.5]}
PATIENCE, WRITERS = 60.0, 2


def settle(copies: Any) -> None:
    with copies._changed:
        assert copies._changed.wait_for(lambda: not copies._waiting, PATIENCE)


def files_of(reported: Any) -> dict[int, list[str]]:
    return {event.job: [file.sha256 for file in event.manifest.files] for event in reported.of(AdapterKept)}


def texts_of(reported: Any) -> set[Any]:
    return {
        (event.job, event.milestone, event.error, *(one.text for one in event.samples)) for event in reported.of(TextsEvaluated)
    }


class Kept:
    """The copies that stores have kept apart. look: called in the loop once it goes on after `count` of them were kept."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, look: Callable[["Kept", Executor], None]) -> None:
        self.tensors, self.copies = list[Any](), list[WeightsCopy]()
        self.size = 0
        keep, finished, looked = AdapterStore.keep_apart, Executor._detach_finished, list[bool]()

        def keeping(store: AdapterStore, weights: Any) -> WeightsCopy:
            self.tensors.append(weakref.ref(weights))
            self.size = weights.nbytes
            self.copies.append(keep(store, weights))
            assert len(self.copies) > count or store._apart._waiting_bytes <= max(self.size, store._apart._most_waiting)
            return self.copies[-1]

        def look_once(executor: Executor) -> None:
            if len(self.copies) == count and not looked:
                looked.append(True)
                settle(executor._replicas.store._apart)
                gc.collect()
                look(self, executor)
            finished(executor)

        patch.setattr(AdapterStore, "keep_apart", keeping)
        patch.setattr(Executor, "_detach_finished", look_once)

    @property
    def in_memory(self) -> int:
        return sum(tensor() is not None for tensor in self.tensors)

    @property
    def bytes_left(self) -> float:
        """Of the budget, as of now."""
        copies = self.copies[0].let_go.func.__self__
        assert not copies._waiting_bytes
        return copies._bytes_left


@pytest.fixture
def slow_exports(monkeypatch):
    """They begin once this is set."""
    go_on, real = threading.Event(), artifact_uploader.export_peft

    def export(*parts, **named):
        assert go_on.wait(PATIENCE)
        return real(*parts, **named)

    monkeypatch.setattr(artifact_uploader, "export_peft", export)
    yield go_on
    go_on.set()


def texts_wait(patch: pytest.MonkeyPatch, until: threading.Event) -> None:
    """None are generated before."""
    begin = TextEvaluations._begin

    def begun(texts: TextEvaluations, replicas: Any) -> None:
        if until.is_set():
            begin(texts, replicas)

    patch.setattr(TextEvaluations, "_begin", begun)


@pytest.mark.parametrize(("asked", "fitting"), [(None, 0), (None, 2), (ASKED, 2), (HALFWAY, 2)])
def test_memory_holds_as_many_adapters_as_its_budget(fleet, placing, tmp_path, monkeypatch, slow_exports, asked, fitting):
    """Of jobs that end, or are at a milestone, at one step. Each is exported bit for bit as where all were held."""
    held, more = list[int](), {} if asked is None else {"evaluation": asked}

    def look(kept, executor):
        held.append(kept.in_memory)
        slow_exports.set()

    with monkeypatch.context() as patch:
        texts_wait(patch, slow_exports)
        known = Kept(patch, len(RATES), look)
        (plenty,) = Inside(fleet, tmp_path / "plenty").run(placing(SPACE, **SPEC, **more))
    slow_exports.clear()
    with monkeypatch.context() as patch:
        texts_wait(patch, slow_exports)
        kept = Kept(patch, len(RATES), look)
        inside = Inside(fleet, tmp_path / "scarce", worker_park_bytes=4 * fitting * known.size + 1)
        (scarce,) = inside.run(placing(SPACE, **SPEC, **more))
    assert held[0] == len(RATES)
    assert held[1] <= fitting + (WRITERS if asked is None else 0)
    assert files_of(scarce) == files_of(plenty)
    assert len(files_of(scarce)) == len(RATES)
    assert texts_of(scarce) == texts_of(plenty)
    assert kept.bytes_left == fitting * known.size + 1 / 4, "all were let go"
    kept.copies.clear()
    gc.collect()
    assert kept.in_memory == 0
    assert not list((tmp_path / "scarce").glob("**/executors/*/*"))


def test_a_task_that_leaves_gives_the_memory_of_its_adapters_back(fleet, placing, tmp_path, monkeypatch):
    def look(kept, executor):
        executor.handle_command(Detach(placement_id=placement.placement_id))

    texts_wait(monkeypatch, threading.Event())
    kept = Kept(monkeypatch, 2 * len(RATES), look)
    placement = placing(SPACE, **SPEC, evaluation=HALFWAY)
    Inside(fleet, tmp_path, worker_park_bytes=4 * 10**6).run(placement)
    assert kept.bytes_left == 10**6


@pytest.mark.parametrize("evaluation", [None, ASKED])
def test_one_that_cannot_be_read_back_costs_its_task_its_placement_alone(fleet, placing, tmp_path, monkeypatch, evaluation):
    ask, two = TextEvaluations.ask, SPACE | {"learning_rate": RATES[:2]}
    asked = {} if evaluation is None else {"evaluation": evaluation}
    bad, good = placing(two, **SPEC, **asked), placing(two, rows(30, seed=3), **SPEC, **asked)

    def ruined(texts, replicas, task, run, weights, then):
        if run.key == (bad.placement_id, 0):
            settle(replicas.store._apart)
            os.ftruncate(weights.let_go.args[0].at.io.fileno(), 0)
        ask(texts, replicas, task, run, weights, then)

    inside = Inside(fleet, tmp_path / "a", worker_park_bytes=1)
    with monkeypatch.context() as patch:
        patch.setattr(TextEvaluations, "ask", ruined)
        lost, done = inside.run(bad, good, together=True)
    assert len(files_of(done)) == 2
    ends = {ended.placement_id: ended for ended in inside.ended}
    assert not ends[good.placement_id].lost
    assert (ends[bad.placement_id].lost, ends[bad.placement_id].by_node) == (True, True)
    assert "a file of weights in MOTET_WORKER_DIR cannot be read back" in ends[bad.placement_id].detail
    assert 0 not in lost.ended
    (again,) = Inside(fleet, tmp_path / "b").run(resumed(lost, "again"))
    assert {**files_of(lost), **files_of(again)}.keys() == {0, 1}


def test_adapters_that_waited_in_a_process_that_ended_are_made_again_from_checkpoints(fleet, placing, tmp_path, monkeypatch):
    two = SPACE | {"learning_rate": RATES[:2]}
    (whole,) = Inside(fleet, tmp_path / "whole").run(placing(two, **SPEC))
    ended = threading.Event()

    def look(kept, executor):
        executor.handle_command(Stop(seconds=0))

    def export(*parts, **named):
        assert ended.wait(PATIENCE)
        raise LeaseNotHeld("its process has ended")

    with monkeypatch.context() as patch:
        Kept(patch, 2, look)
        patch.setattr(artifact_uploader, "export_peft", export)
        inside = Inside(fleet, tmp_path / "a", worker_park_bytes=1, worker_checkpoint_seconds=0.01)
        (lost,) = inside.run(placing(two, **SPEC), paced=True)
        ended.set()
    assert files_of(lost) == {}
    assert lost.checkpoints.keys() == {0, 1}
    (again,) = Inside(fleet, tmp_path / "b").run(resumed(lost, "again"))
    assert files_of(again) == files_of(whole)
