"""The benchmark of sharded bases on a CPU with a toy shape: all contestants agree with the reference and are timed; figures
follow from rows; what fails or comes too late is told."""

import dataclasses
import time
from collections.abc import Iterator

import pytest
import torch

from benchmarks.sharded.__main__ import DEFAULT, figures_of, measured, options_of, orders_of
from benchmarks.sharded.drawn_model import SHAPES
from benchmarks.sharded.plans import FSDP, FSDP_PACKED, MOTET, TP_PACKED, plan_of
from benchmarks.sharded.rank_set import RankSet
from benchmarks.sharded.reference import AdapterOutcome, errors

TOY = ("--device", "cpu", "--shape", "toy", "--ranks", "2", "--batches", "1", "--tokens", "16")


@pytest.fixture
def ranks() -> Iterator[RankSet]:
    made = RankSet(2)
    yield made
    made.close()


def test_all_contestants_agree_with_one_process_and_are_timed(ranks: RankSet) -> None:
    rows = []
    for orders in orders_of(options_of(TOY)):
        news = list(ranks.run(orders))
        (gate,) = (value for kind, value in news if kind == "gate")
        assert gate["passed"], (orders.contestant, news)
        assert 0 < gate["gradient"] <= gate["tolerance"][1]
        rows += [value for kind, value in news if kind == "row"]
        assert not [value for kind, value in news if kind == "failed"]
    assert [row["contestant"] for row in rows if row["what"] == "step"] == list(DEFAULT)
    assert all(row["tokens"] == 8 * 16 and row["least_ms"] <= row["ms"] <= row["most_ms"] for row in rows)
    figures = figures_of(rows, "toy")
    assert set(figures) == {f"x_{name}_bs1_toy" for name in DEFAULT[1:]} | {"exposed_comm_fraction_bs1_toy"}
    *_, (kind, why) = ranks.run(dataclasses.replace(orders, contestant="nobody"))
    assert kind == "failed"
    assert "KeyError: 'nobody'" in why


def test_a_contestant_that_comes_too_late_is_not_begun() -> None:
    seen: list[tuple[str, str, str]] = []
    late = [dataclasses.replace(orders, until=time.monotonic() - 1) for orders in orders_of(options_of(TOY))[:1]]
    measured(late, lambda *news: seen.append(news))
    assert seen == [(MOTET, "failed", "not begun: the deadline had passed")]


def test_figures_are_ratios_to_our_time() -> None:
    def row(name: str, batch: int, ms: float, what: str = "step") -> dict:
        return {"what": what, "contestant": name, "batch": batch, "ms": ms, "peak_gb": [1.0, 60.5]}

    rows = [row(MOTET, 1, 100.0), row(MOTET, 2, 200.0), row(MOTET, 2, 190.0, "step, gathers skipped"), row(FSDP, 1, 310.0)]
    rows += [{"what": "step", "contestant": FSDP_PACKED, "error": "out of memory"}]
    rows += [{"what": "step", "contestant": FSDP, "batch": 2, "skipped": "the deadline had passed"}]
    assert figures_of(rows, "32b") == {
        "x_fsdp_bs1_32b": 3.1, "exposed_comm_fraction_32b": 0.05, "peak_gb_motet_32b": 60.5, "peak_gb_fsdp_32b": 60.5
    }  # fmt: skip


def test_plans_shard_as_few_layers_as_the_cap_allows() -> None:
    shape = SHAPES["32b"]
    found = {
        (name, cap): plan_of(name, shape, 2, cap * 10**9, 8, 256, True)
        for name in (MOTET, FSDP) for cap in (64, 80, 200)
    }  # fmt: skip
    assert found[MOTET, 200] is None
    counts = {key: len(plan.layers) for key, plan in found.items() if plan is not None}
    assert 0 < counts[FSDP, 80] < counts[MOTET, 80] < counts[MOTET, 64] < shape.layers, "one adapter beside four"
    short = plan_of(MOTET, shape, 2, 64 * 10**9, 1, 256, True)
    assert short is not None
    assert len(short.layers) < counts[MOTET, 64], "a pass of few rows leaves more room"
    every = plan_of("fsdp_every_layer", shape, 2, 80 * 10**9, 8, 256, True)
    assert every is not None
    assert len(every.layers) == shape.layers
    assert plan_of(TP_PACKED, shape, 2, 80 * 10**9, 8, 256, True) is None


def test_a_wrong_gradient_of_one_matrix_does_not_agree() -> None:
    right = AdapterOutcome(2.0, [(torch.ones(2, 3), torch.ones(3, 2))] * 2)
    wrong = AdapterOutcome(2.2, [right.gradients[0], (torch.ones(2, 3), torch.full((3, 2), 1.1))])
    assert errors(wrong, right) == (pytest.approx(0.1), pytest.approx(0.1))
    assert errors(AdapterOutcome(float("nan"), right.gradients), right) == (float("inf"), 0.0)
