"""The benchmark of several devices, on a CPU with a tiny shape: two widths train the same; figures follow from rows."""

import pytest

from benchmarks import drawn_base, parallel
from worker.replicas.ranks import rank_group, rank_process


@pytest.fixture
def quick(monkeypatch):
    """Few steps, and what `install` changes changed back."""
    for name, value in {"JOBS": 4, "WARM_STEPS": 2, "WARM_SECONDS": 0.0, "LEAST_STEPS": 3, "COMPARED": 3}.items():
        monkeypatch.setattr(parallel, name, value)
    monkeypatch.setattr(rank_group, "load_base", rank_group.load_base)
    monkeypatch.setattr(rank_process, "RANK_MODULE", rank_process.RANK_MODULE)
    drawn_base.install()


@pytest.mark.usefixtures("quick")
def test_two_processes_step_as_one_does(tmp_path):
    alone = dict(parallel.measured("tiny", [1, 2], 1, 0.0, tmp_path / "one"))
    both = dict(parallel.measured("tiny", [1, 2], 2, 0.0, tmp_path / "two"))
    for batch in (1, 2):
        assert parallel.furthest(both[batch], alone[batch]) <= 1e-2  # in bf16
        row = both[batch].row()
        assert row["steps"] >= 3
        assert row["tokens_per_s"] == pytest.approx(row["tokens_per_step"] / row["ms"] * 1e3)
    del both[1].losses[3]
    with pytest.raises(ValueError, match="4 jobs stepped on one GPU, 3 on several"):
        parallel.furthest(both[1], alone[1])


def test_figures_compare_with_one_gpu():
    rows = [
        {"model": "1B", "batch": 2, "gpus": 1, "tokens_per_s": 10.0},
        {"model": "1B", "batch": 2, "gpus": 2, "tokens_per_s": 19.0},
        {"model": "1B", "batch": 8, "gpus": 1, "tokens_per_s": 10.0},
        {"model": "1B", "batch": 8, "gpus": 4, "tokens_per_s": 39.0},
        {"model": "8B", "batch": 2, "gpus": 2, "tokens_per_s": 39.0},
    ]
    assert parallel.figures_of(rows) == {"scaling_2": 1.9, "scaling_4_bs8": 3.9}
