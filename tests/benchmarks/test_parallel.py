"""The benchmark of several devices, on a CPU with a tiny shape: two widths train the same; figures follow from rows; the file
grows by a cell at a time."""

import json

import pytest

from benchmarks import drawn_base, parallel, parallel_cell, result_file
from benchmarks.parallel_cell import Cell
from worker.replicas.ranks import rank_group, rank_start


@pytest.fixture
def quick(monkeypatch):
    """Few steps, and what `install` changes changed back."""
    monkeypatch.setattr(parallel, "JOBS", 4)
    for name, value in {"WARM_STEPS": 2, "WARM_SECONDS": 0.0, "LEAST_STEPS": 3, "COMPARED": 3}.items():
        monkeypatch.setattr(parallel_cell, name, value)
    monkeypatch.setattr(rank_group, "load_base", rank_group.load_base)
    monkeypatch.setattr(rank_start, "RANK_MODULE", rank_start.RANK_MODULE)
    drawn_base.install()


@pytest.mark.usefixtures("quick")
def test_two_processes_step_as_one_does(tmp_path):
    alone, both = dict[int, Cell](), dict[int, Cell]()
    parallel.measured("tiny", [1, 2], [0], 0.0, tmp_path / "one", alone.__setitem__)
    parallel.measured("tiny", [1, 2], [0, 1], 0.0, tmp_path / "two", both.__setitem__)
    for batch in (1, 2):
        assert parallel.furthest(both[batch], alone[batch]) <= 1e-2  # in bf16
        row = both[batch].row()
        assert row["jobs"] == 4
        assert row["steps"] >= 3
        assert row["tokens_per_s"] == pytest.approx(row["tokens_per_step"] / row["ms"] * 1e3)
        assert row["busy"] > 0.0  # by parts of a window, which need not be equally long


def cell(losses: dict[int, list[float]]) -> Cell:
    """Steps of 0.1 s and 40 tokens on two devices, one of which waits for half of each."""
    return Cell(0.0, [place / 10 for place in range(9)], [40] * 9, [1] * 9, losses, [0.15] * 9, 2, list(range(9)))


@pytest.mark.usefixtures("quick")
def test_busy_is_the_part_of_the_time_that_devices_work():
    assert cell({}).row()["busy"] == pytest.approx(0.75)


@pytest.mark.usefixtures("quick")
def test_the_warmup_ends_as_replicas_meet():
    """The steps of a window count as equally long, though the first may have compiled a kernel."""
    both = cell({})
    both.met = [0, 4, 8]
    assert both.warm == 4
    both.met = [0]
    assert both.warm is None
    assert not both.done


@pytest.mark.usefixtures("quick")
def test_the_jobs_that_stepped_at_both_widths_are_compared():
    alone = cell({0: [2.0, 1.0], 1: [2.0, 1.0], 2: [2.0]})
    assert parallel.furthest(cell({1: [2.0, 1.1], 2: [2.0, 9.0], 3: [9.0]}), alone) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="1 of 4 jobs stepped at both widths: 3 on one GPU, 2 on several"):
        parallel.furthest(cell({2: [2.0], 3: [2.0]}), alone)


@pytest.mark.usefixtures("quick")
def test_a_run_that_ends_with_an_error_keeps_the_cells_before(tmp_path, monkeypatch):
    monkeypatch.setattr(result_file, "RESULTS", tmp_path)
    run, trained = parallel.Run({"passed": True}, "c", 2), {job: [2.0] for job in range(4)}

    def kept() -> list[tuple[int, int, int]]:
        (path,) = tmp_path.iterdir()
        return [(row["batch"], row["gpus"], row["jobs"]) for row in json.loads(path.read_text())["rows"]]

    run.note("tiny", [0], 2, cell({job: [2.0] for job in range(3)}))
    assert kept() == [(2, 1, 3)]
    run.note("tiny", [0, 1], 2, cell(trained))
    assert kept() == [(2, 1, 3), (2, 2, 4)]
    run.note("tiny", [0], 8, cell(trained))
    with pytest.raises(ValueError, match="did not pass"):
        run.note("tiny", [0, 1], 8, cell({job: [2.1] for job in range(4)}))
    assert kept() == [(2, 1, 3), (2, 2, 4), (8, 1, 4)]


def test_figures_compare_with_the_mean_of_single_gpus():
    rows = [
        {"model": "1B", "batch": 2, "gpus": 1, "tokens_per_s": 9.0},
        {"model": "1B", "batch": 2, "gpus": 1, "tokens_per_s": 11.0},
        {"model": "1B", "batch": 2, "gpus": 2, "tokens_per_s": 19.0},
        {"model": "1B", "batch": 8, "gpus": 1, "tokens_per_s": 10.0},
        {"model": "1B", "batch": 8, "gpus": 4, "tokens_per_s": 39.0},
        {"model": "8B", "batch": 2, "gpus": 2, "tokens_per_s": 39.0},
    ]
    assert parallel.figures_of(rows) == {"scaling_2": 1.9, "scaling_4_bs8": 3.9}
