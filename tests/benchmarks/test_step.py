"""The step's benchmark as far as it needs no GPU: its steps on a tiny base, its figures' names, the README's table."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import consecutive_steps as consecutive
from benchmarks.consecutive_steps import consecutive_steps
from benchmarks.llama_shapes import Rows
from benchmarks.pass_timing import BASE, GROUPED, LOOP, MIXED, OURS, OURS_FP8, SOLO, UNIFORM
from benchmarks.readme_figures import made
from benchmarks.sequential_peft import COMPILED, SEQUENTIAL, inputs
from benchmarks.step_figures import COPY, FP8, STEP, figures
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer

ROOT = Path(__file__).parents[2]
NAMES = (
    "step_ms_bs1 step_ms_bs2 step_ms_bs4 lora_tax_bs1 lora_tax_bs4 base_ms_bs1 x_sequential_bs1 x_sequential_compiled_bs1 "
    "x_loop_bs1 ms_1x1 ms_4x1 ms_12x1 label_fraction tail_fraction x_grouped_mm_min mfu_bs4 peak_gb_8b_32 optimizer_ms_fp32 "
    "optimizer_ms_8bit tokens_per_s_bs1 mixed_rank_ratio fp8_over_bf16_base_bs1 step_ms_fp8_bs1 x_solo_graphed_bs1 "
    "copy_bytes_per_s"
)


def test_steps_of_real_jobs_with_an_adapter_that_leaves_and_one_that_comes() -> None:
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Trainer(backbone, Arena(backbone.targets, 300))
    row = consecutive_steps(trainer, Rows(tiny.VOCAB), batch=1, adapters=4, steps=4, warmup=4)
    assert row["what"] == STEP
    assert trainer.forwards == 8
    assert row["tokens_per_step"] > 4 * 50
    assert 0.3 < row["label_fraction"] < 0.7


def test_steps_that_are_launched_ahead_train_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found, real, unread = list[Any](), consecutive.launch, list[bool]()

    def launch(*given: Any) -> Any:
        unread.append(bool(given[-1]))
        return real(*given)

    monkeypatch.setattr(consecutive, "launch", launch)
    for ahead in (False, True):
        unread.clear()
        monkeypatch.setattr(Trainer, "launches_ahead", ahead)
        torch.manual_seed(0)
        backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
        trainer = Trainer(backbone, Arena(backbone.targets, 300))
        row = consecutive_steps(trainer, Rows(tiny.VOCAB), batch=1, adapters=4, steps=5, warmup=3)
        found.append((trainer.arena.master.clone(), row["tokens_per_step"], trainer.forwards))
        assert unread == [ahead and first != 0 for first in (0, 1, 2, 0, 1, 0, 1, 2)], "the warmup, and either half"
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_every_figure_is_made_from_rows() -> None:
    rows = [
        {"what": f"forward + backward, {name}", "model": model, "batch": batch, "ms": ms, "tokens": 6000, "labels": 3000}
        for model, batches in (("1B", (1, 2, 4)), ("8B", (1,)))
        for batch in batches
        for name, ms in ((OURS, 60.0), (BASE, 50.0), (GROUPED, 90.0), (LOOP, 900.0))
    ]
    rows += [
        {"what": STEP, "batch": b, "step_ms": 70.0, "label_fraction": 0.5, "tail_fraction": 0.01, "tokens_per_s": 8e4}
        for b in (1, 2, 4)
    ]
    rows += [{"what": "forward + backward, few adapters", "adapters": n, "ms": 6.0} for n in (1, 4, 12)]
    rows += [{"what": f"optimizer, {kind} moments", "ms": 9.0} for kind in ("fp32", "8-bit")]
    rows += [{"what": name, "batch": 1, "ms": 3500.0} for name in (SEQUENTIAL, COMPILED)]
    rows.append({"what": "step on the 8B shape, 32 adapters, 8-bit moments, checkpointing", "ms": 500.0, "peak_gb": 57.0})
    rows += [{"what": f"mixed ranks: {name}", "batch": 1, "adapters": 32, "ms": 55.0} for name in (UNIFORM, MIXED)]
    rows[-1]["over_uniform"] = [1.2, 1.05, 1.1]
    rows += [{"what": FP8 + STEP, "batch": 1, "step_ms": 51.0}]
    rows += [{"what": f"{FP8}forward + backward, {OURS_FP8}", "batch": 1, "ms": 47.0, "over_base": [0.9, 0.95, 0.97]}]
    rows += [{"what": f"packing: {name}", "batch": 1, "ms": ms} for name, ms in ((OURS, 60.0), (SOLO, 150.0))]
    rows += [{"what": COPY, "bytes_per_s": 4.2e12}]
    found = figures(rows)
    assert set(NAMES.split()) <= set(found)
    assert found["lora_tax_bs1"] == pytest.approx(0.2)
    assert found["x_grouped_mm_min"] == pytest.approx(1.5)
    assert found["x_sequential_bs1"] == pytest.approx(50.0)
    assert found["lora_tax_8b_16"] == pytest.approx(0.2)
    assert found["mixed_rank_ratio"] == pytest.approx(1.1)
    assert found["fp8_over_bf16_base_most_bs1"] == pytest.approx(0.97)
    assert found["x_solo_graphed_bs1"] == pytest.approx(2.5)


def test_a_skipped_part_leaves_its_figures_out_and_the_tax_is_the_median_of_pairs() -> None:
    rows = [
        {"what": f"forward + backward, {name}", "model": "1B", "batch": 1, "ms": ms, "tokens": 6000, "labels": 3000}
        for name, ms in ((OURS, 60.0), (BASE, 50.0))
    ]
    rows[0]["over_base"] = [1.1, 1.3, 1.15]
    found = figures(rows)
    assert found["lora_tax_bs1"] == pytest.approx(0.15)
    assert (found["lora_tax_least_bs1"], found["lora_tax_most_bs1"]) == (pytest.approx(0.1), pytest.approx(0.3))
    assert set(found) == {"lora_tax_bs1", "lora_tax_least_bs1", "lora_tax_most_bs1", "base_ms_bs1"}


def test_sequential_peft_sees_the_same_rows() -> None:
    rows = tiny.examples([9, 4])
    tokens, labels = inputs(rows, 12)
    for place, row in enumerate(rows):
        length = len(row.tokens)
        assert tokens[place, :length].tolist() == row.tokens.tolist()
        assert (labels[place, :length] != -100).tolist() == row.loss_mask.tolist()
        assert (labels[place, length:] == -100).all()


def test_pages_and_plots_are_those_of_the_result_files() -> None:
    stale = [str(path) for path, text in made().items() if path.read_text() != text]
    assert not stale, "make them anew: python -m benchmarks.readme_figures"
