"""The benchmark of a neighbour whose rows are read, in small; and what it makes of the times at which reports come."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from benchmarks import beside_rows
from benchmarks.beside_rows import Pace, measure
from benchmarks.sharing import SHAPES
from benchmarks.sweep.random_base import write_base
from tests.worker.fleet import Fleet


@pytest.fixture
def fleet():
    made = Fleet()
    yield made
    made.close()


def test_running_tasks_are_timed_beside_a_neighbours_rows(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(beside_rows, "TIMES", 1)
    monkeypatch.setattr(beside_rows, "COMPARED", 60)
    base = write_base(SHAPES["toy"], tmp_path / "base", torch.device("cpu"))
    figures, rows, gate = measure(Namespace(rows=12_000, tasks=[2], device="cpu"), fleet, base, tmp_path)
    assert gate["passed"]
    assert gate["worst_error"] == 0.0, "on a CPU company changes no bit"
    (row,) = rows
    assert row["slower"] == pytest.approx(row["alone_steps_s"] / row["beside_steps_s"])
    assert figures["slower_2"] == row["slower"]
    assert figures["us_a_row"] == pytest.approx(1e6 * row["tokenise_s"] / 12_000)


def test_a_pace_is_that_of_all_tasks_between_their_reports(fleet):
    times = iter([0.0, 1.0, 3.0, 5.0, 2.0, 4.0])
    pace = Pace(fleet, lambda: next(times))
    for key, step in (("a", 0), ("a", 10), ("a", 30), ("a", 90), ("b", 1), ("b", 7)):
        pace._heard(SimpleNamespace(placement=SimpleNamespace(placement_id=key), step={0: step}), None)
    assert pace.a_second(["a", "b"], 1.0, 4.0) == pytest.approx(10 + 3)
    with pytest.raises(RuntimeError, match="a reported 1 times in"):
        pace.a_second(["a"], 4.0, 6.0)
    pace.close()


def test_who_waits_for_steps_that_do_not_come_is_told_what_was_refused(fleet, monkeypatch):
    monkeypatch.setattr(beside_rows, "PATIENCE_SECONDS", 0.01)
    pace = Pace(fleet)
    with pytest.raises(RuntimeError, match=r"no 5 steps in 0\.01 s; refused: nothing"):
        pace.wait_for_steps(["a"], 5)
    pace.close()
