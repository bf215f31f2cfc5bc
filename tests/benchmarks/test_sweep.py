"""The sweep's benchmark as far as it needs no GPU: its figures from rows, its clocks, and a search of a tiny base."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import readme_figures
from benchmarks.llama_shapes import LlamaShape
from benchmarks.quality.base_set_pairs import BATCH_SIZES, RANKS
from benchmarks.sequential_peft import COMPILED, SEQUENTIAL
from benchmarks.sweep import live_search, solo_steps
from benchmarks.sweep.__main__ import row_of, time_split
from benchmarks.sweep.device_clock import DeviceClock
from benchmarks.sweep.figures import OURS, SEARCH, SPLIT, figures
from benchmarks.sweep.live_search import RATES, SPACE, held_out, run_search
from benchmarks.sweep.random_base import write_base
from benchmarks.sweep.solo_steps import SOLO, graphed_update, solo_rows
from benchmarks.sweep.stopwatch import EVALUATION, LOADING, OTHER, REPLAYED, TRAINING, UPDATED, Stopwatch
from contract.early_exit_policy import EarlyExitPolicy
from contract.task_spec import TaskSpec
from tests.worker.corpus import rows as corpus
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.flat_batch import Segment
from worker.model.row_optimizer import RowUpdate, update_rows

WALL = {TRAINING: 100.0, EVALUATION: 20.0, OTHER: 1.0, LOADING: 5.0}


def search_row(policy: str, rows: int, epochs: int, seconds: float) -> dict[str, Any]:
    return {
        "what": SEARCH + policy, "rows_trained": rows, "epochs": epochs, "seconds": seconds, "samples_saved": 0.7,
        "samples_full": 60 * rows * epochs, "tokens_trained": 60 * rows * epochs * 200, "tokens_evaluated": 1_000_000,
        "wall": WALL,
    }  # fmt: skip


def peft(what: str, ms: float, sizes: tuple[int, ...] = BATCH_SIZES) -> list[dict[str, Any]]:
    return [{"what": what, "batch": size, "adapters": 6, "ms": 6 * ms} for size in sizes]


def solo(ms: float) -> list[dict[str, Any]]:
    return [
        {"what": SOLO, "batch": size, "rank": rank, "steps": 16, "ms": 16 * ms * size * rank}
        for size, rank in product(BATCH_SIZES, RANKS)
    ]


def test_the_search_is_of_60_configurations_at_the_products_defaults() -> None:
    spec = {"base_model": "b", "dataset": {"file_id": "f"}, "search_space": SPACE}
    assert len(TaskSpec.model_validate(spec).jobs()) == 60
    assert EarlyExitPolicy().policy == OURS
    assert EarlyExitPolicy().max_evaluation_share == live_search.EVALUATION_SHARE
    assert held_out(1000) == 250, "a fifth of all rows"
    assert held_out(100_000) == 512


def test_every_configuration_takes_its_steps_one_after_another() -> None:
    ours = search_row(OURS, 1000, 2, 200.0)
    found = figures([ours, *peft(SEQUENTIAL, 100.0), *solo(0.1)])
    steps = {size: 2 * -(-1000 // size) for size in BATCH_SIZES}
    assert found["x_sequential"] == pytest.approx(sum(15 * count * 0.1 for count in steps.values()) / 200)
    graphed = sum(5 * count * size * rank * 1e-4 for size, count in steps.items() for rank in RANKS)
    assert found["hours_solo_graphed"] == pytest.approx(graphed / 3600)
    assert found["x_solo_graphed"] == pytest.approx(graphed / 200)
    assert len(RATES) * len(RANKS) * len(BATCH_SIZES) == 60


def test_a_part_that_has_not_run_leaves_its_figures_out() -> None:
    ours, rows = search_row(OURS, 1000, 2, 200.0), solo(0.1)
    assert figures([]) == {}
    assert set(figures([ours])) == {"minutes_ours", "samples_saved"}
    for known in range(len(rows)):
        assert "x_solo_graphed" not in figures([ours, *rows[:known]])
    assert "x_sequential_fastest" not in figures([ours, *peft(SEQUENTIAL, 100.0)])
    assert figures([ours, {"what": SPLIT, "idle": 30.0}])["idle_fraction"] == pytest.approx(0.15)


def test_the_faster_of_peft_eager_and_compiled_counts_at_each_batch_size() -> None:
    rows = [
        search_row(OURS, 1000, 2, 200.0),
        *peft(SEQUENTIAL, 100.0),
        *peft(COMPILED, 40.0, (1,)),
        *peft(COMPILED, 120.0, (8,)),
    ]
    found = figures(rows)
    seconds = {1: 15 * 2000 * 0.04, 2: 15 * 1000 * 0.1, 4: 15 * 500 * 0.1, 8: 15 * 250 * 0.1}
    assert found["x_sequential_fastest"] == pytest.approx(sum(seconds.values()) / 200)
    assert found["x_sequential"] > found["x_sequential_fastest"]


def test_the_search_without_exits_is_scaled_and_evaluates_what_the_product_allows() -> None:
    ours, none = search_row(OURS, 1000, 2, 200.0), search_row("none", 100, 1, 130.0)
    found = figures([ours, none, *solo(0.1)])
    tokens = 0.15 * 60 * 2000 * 200
    whole = 130 + 19 * (100 + 1) - 20 + tokens * 20 / 1e6
    assert found["minutes_batching_only"] == pytest.approx(whole / 60)
    assert found["x_solo_graphed_batching_only"] == pytest.approx(found["hours_solo_graphed"] * 3600 / whole)


class Event:
    """Like torch.cuda.Event, on a device whose work takes as long as `now` says."""

    now = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_the_device_clock_adds_spans_and_leaves_out_what_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = DeviceClock(Event)
    for ms in (3.0, 4.0):
        with clock.span(TRAINING, REPLAYED):
            Event.now += ms
    with clock.span(EVALUATION, REPLAYED):
        Event.now += 10.0
    monkeypatch.setattr("benchmarks.sweep.device_clock._capturing", lambda: True)
    with clock.span(TRAINING, REPLAYED):
        Event.now += 100.0
    assert clock.seconds() == {(TRAINING, REPLAYED): pytest.approx(0.007), (EVALUATION, REPLAYED): pytest.approx(0.01)}
    assert clock.counts() == {(TRAINING, REPLAYED): 2, (EVALUATION, REPLAYED): 1}


def test_idle_is_the_loops_wall_time_less_the_devices() -> None:
    clock = DeviceClock(Event)
    for part, kind, seconds in ((TRAINING, REPLAYED, 80.0), (TRAINING, UPDATED, 6.0), (EVALUATION, REPLAYED, 15.0)):
        with clock.span(part, kind):
            Event.now += 1e3 * seconds
    watch = Stopwatch(clock)
    watch.seconds.update(WALL)
    device, split = time_split(watch, {"base": 6.0, "lora": 3.0, "loss": 1.0})
    assert device["seconds"] == {"training replayed passes": 80.0, "training updates": 6.0, "evaluation replayed passes": 15.0}
    assert (split["base"], split["lora"], split["loss"], split["optimizer"]) == (48.0, 24.0, 8.0, 6.0)
    assert split["evaluation"] == 15.0
    assert split["idle"] == 20.0
    assert sum(value for name, value in split.items() if name != "what") == pytest.approx(sum(WALL.values()))


def test_a_search_of_a_tiny_base_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = LlamaShape(2, 32, 64, 2, 1, 16, 4200, True)
    monkeypatch.setattr(live_search, "SPACE", {"learning_rate": [1e-3, 1e-4], "rank": [8], "batch_size": [4, 8]})
    base = write_base(shape, tmp_path / "base", torch.device("cpu"))
    held = held_out(40)
    live = run_search(base, corpus(40 + held), held, 2, {"policy": OURS}, tmp_path / "worker", "cpu", worker_step_tokens=None)
    assert live.watch.passes > 0
    assert live.watch.tokens > 25 * live.samples
    assert live.watch.sampled
    assert live.samples_full == 4 * 2 * 40
    assert live.evaluation_tokens > 0
    assert {TRAINING, EVALUATION, LOADING} <= set(live.watch.seconds)
    assert sum(live.watch.seconds.values()) == pytest.approx(live.seconds, rel=0.05)
    row = row_of(OURS, live, 40, 2)
    assert figures([row])["samples_saved"] == live.saved


class Replays:
    """Like CapturedGraphs, on a host: what is captured is called."""

    def __init__(self, device: torch.device, most: int) -> None:
        self.captured: dict[str, tuple[Tensor, Callable[[], Tensor]]] = {}

    @classmethod
    def __class_getitem__(cls, kinds: object) -> "type[Replays]":
        return cls

    def capture(self, key: str, inputs: Tensor, run: Callable[[], Tensor], warm: Callable[[], object]) -> None:
        warm()
        self.captured[key] = (inputs, run)

    def replay(self, key: str, host: Tensor) -> Tensor:
        inputs, run = self.captured[key]
        inputs.copy_(host)
        return run()


def test_the_graphed_update_is_the_optimizers_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solo_steps, "CapturedGraphs", Replays)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    arena, plain = DeviceArena(backbone.targets, 24, "cpu", torch.float32), Arena(backbone.targets, 24)
    trainer: Any = SimpleNamespace(arena=arena, backbone=backbone)
    arena.attach(8, 16.0), plain.attach(8, 16.0)
    slot, other = arena.attach(16, 32.0), plain.attach(16, 32.0)
    run = graphed_update(trainer, RowUpdate(slot, 1e-2, 0.01, 3, 1.0))
    for buffer in (arena.master, arena.grad, *arena.moments.buffers):
        buffer.uniform_(0.1, 1.0)
    for to, buffer in zip(
        (plain.master, plain.grad, *plain.moments.buffers), (arena.master, arena.grad, *arena.moments.buffers), strict=True
    ):
        to.copy_(buffer)
    assert arena.gradient.squares is not None
    arena.gradient.squares[0, slot.row // 8, 0] = arena.grad[slot.used].square().sum()  # as a pass leaves it
    arena.slots_with_gradient.add(slot)
    run()
    update_rows(plain, RowUpdate(other, 1e-2, 0.01, 3, 1.0))
    torch.testing.assert_close(arena.master, plain.master)
    torch.testing.assert_close(arena.compute_copy[slot.used], arena.master[slot.used])
    assert not arena.slots_with_gradient


def test_solo_steps_cover_each_batch_size_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    arena, trained = DeviceArena(backbone.targets, 64, "cpu", torch.float32), list[list[Segment]]()
    graphs = SimpleNamespace(forget=lambda: None)
    trainer = SimpleNamespace(arena=arena, backbone=backbone, graphs=graphs, captured=[1, 2], train=trained.append)
    monkeypatch.setattr(solo_steps, "CapturedGraphs", Replays)
    monkeypatch.setattr(solo_steps, "STEPS", 2)
    monkeypatch.setattr(solo_steps, "new_trainer", lambda backbone, rows: trainer)
    monkeypatch.setattr(
        solo_steps, "in_turns", lambda calls, rounds: {name: (run(), 2.0, 1.0, 3.0)[1:] for name, run in calls.items()}
    )
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    rows = list(solo_rows(backbone, tiny.examples([5, 7, 9] * 11), (1, 2), (8, 16)))
    assert [(row["batch"], row["rank"], row["steps"]) for row in rows] == [(1, 8, 2), (1, 16, 2), (2, 8, 2), (2, 16, 2)]
    assert [len(segments[0].examples) for segments in trained] == [1] * 16 + [2] * 16
    assert not arena.slots


def test_the_pages_text_tells_the_solo_passes_where_the_result_has_them() -> None:
    rows = [search_row(OURS, 1000, 2, 200.0), *peft(SEQUENTIAL, 100.0), {"what": SPLIT, "base": 80.0, "idle": 20.0}]
    result = {"device": "NVIDIA H200", "commit": "c", "date": "2026-11-26", "rows": rows, "figures": figures(rows)}
    without = readme_figures.search(result)
    rows += [*solo(0.1), search_row("none", 100, 1, 130.0)]
    result["figures"] = figures(rows)
    text = readme_figures.search(result)
    assert "graphs" in text
    assert "graphs" not in without
    assert not [line for line in text.split("\n") if line != line.rstrip()]
    assert "idle 20%" in text
    assert "sweep-h200.json" in text
