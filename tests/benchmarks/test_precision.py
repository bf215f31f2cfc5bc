"""What the benchmark of precisions makes of its rows, and the searches that it asks for."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.precision import CHOSEN, Winner, figures_of, kept
from benchmarks.quality.base_set_pairs import PAIRS
from benchmarks.quality.kept_search import third_of


def test_ratios_are_over_the_winner_in_bf16_with_the_same_seed() -> None:
    losses = {("a", "bf16"): (2.0, 2.2), ("a", "fp8"): (2.02, 2.2), ("b", "bf16"): (1.0, 1.0), ("b", "fp8"): (0.97, 0.99)}
    rows = [
        {"pair": pair, "precision": precision, "seed": seed, "peft_val_loss": loss, "peft_unseen_loss": 2 * loss}
        for (pair, precision), both in losses.items()
        for seed, loss in enumerate(both)
    ]
    found = figures_of(rows)
    assert found["fp8_loss_ratio_mean"] == pytest.approx((1.01 + 1.0 + 0.97 + 0.99) / 4)
    assert found["fp8_loss_ratio_mean_se"] == pytest.approx(0.0025)  # 0.99 and 0.995 with either seed
    assert found["fp8_loss_ratio_max"] == pytest.approx(1.005)
    assert found["fp8_loss_ratio_max_se"] == pytest.approx(0.005)
    assert found["bf16_loss_spread_max"] == pytest.approx(2**0.5 * 0.1 / 2.1)
    assert found["bf16_loss_spread_mean_unseen"] == pytest.approx(2**0.5 * 0.05 / 2.1)
    assert len(found) == 12


def test_a_precision_of_fewer_seeds_is_held_beside_the_same_seeds_of_bf16() -> None:
    losses = {"bf16": (2.0, 4.0, 8.0), "nf4": (2.2, 4.0)}
    rows = [
        {"pair": "a", "precision": precision, "seed": seed, "peft_val_loss": loss, "peft_unseen_loss": loss}
        for precision, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]
    found = figures_of(rows)
    assert found["nf4_loss_ratio_mean"] == pytest.approx((1.1 + 1.0) / 2)
    assert found["bf16_loss_spread_max"] == pytest.approx(np.std([2, 4, 8], ddof=1) / (14 / 3))


def test_a_search_spans_every_rate_under_the_asked_precision() -> None:
    chosen = [pair for pair in PAIRS if pair.name in CHOSEN]
    assert len(chosen) == 4
    assert {pair.set.chooses for pair in chosen} == {True, False}
    spec = third_of(chosen[0], precision="fp8")
    assert spec.precision == "fp8"
    jobs = spec.jobs()
    assert len(jobs) == 20
    assert len({job.learning_rate for job in jobs}) == 5
    assert {job.rank for job in jobs} == {16, 32, 64}


def test_a_second_run_goes_on_with_the_missing_winners(tmp_path: Path) -> None:
    judged: list[int] = []

    def judge() -> Winner:
        judged.append(1)
        return Winner(3, 90, 1.5, 1.51, 1.6, 2.0)

    path = tmp_path / "winners" / "a-bf16.json"
    first = kept(path, judge)
    assert kept(path, judge) == first == Winner(3, 90, 1.5, 1.51, 1.6, 2.0)
    assert len(judged) == 1
