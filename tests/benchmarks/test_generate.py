"""The generation benchmark at toy size on a CPU: its gates pass, and every figure comes from the rows that it measured."""

import pytest

from benchmarks.generate import FULL, SMALLEST, figures, measure


def test_a_toy_run_passes_its_gates_and_has_every_figure() -> None:
    gate, found, rows = measure(SMALLEST, "cpu")
    assert gate["passed"]
    assert gate["tokens"]["sequences"] == 15
    assert gate["logits"]["ours"] < 1e-4
    assert found == figures(SMALLEST, rows)
    assert all(value > 0 for value in found.values())


def test_figures_are_of_all_sequences() -> None:
    rows = [
        {"what": "ours, one batch", "s": 2.0, "decode_ms": 8.0, "prompts_s": 0.5},
        {"what": "PEFT, one prompt at a time", "s": 3000.0},
        {"what": "PEFT, an adapter's prompts as a batch", "s": 64.0},
    ]
    found = figures(FULL, rows)
    assert found["x_peft"] == pytest.approx(1500)
    assert found["x_peft_batched"] == pytest.approx(32)
    assert found["tokens_per_s"] == pytest.approx(16 * 64 * 128 / 2)
