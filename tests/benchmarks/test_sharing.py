"""The benchmark of tasks that share an executor, in small."""

from argparse import Namespace

import pytest
import torch

from benchmarks.sharing import ALONE, SHAPES, measure
from benchmarks.sweep.random_base import write_base
from tests.worker.fleet import Fleet


@pytest.fixture
def fleet():
    made = Fleet()
    yield made
    made.close()


def test_tasks_are_timed_from_their_attach_to_their_end(fleet, tmp_path):
    base = write_base(SHAPES["toy"], tmp_path / "base", torch.device("cpu"))
    figures, rows, gate = measure(Namespace(seconds_alone=0.5, at_once=[2], device="cpu"), fleet, base, tmp_path)
    assert gate["passed"]
    assert gate["worst_error"] == 0.0, "on a CPU company changes no bit"
    alone, together, bounded = (row for row in rows if "seconds" in row)
    for row in (alone, together, bounded):
        assert row["of_a_task"][0] > row["first_step_s"][0], "its first step, and then all others"
    assert alone["seconds"] == pytest.approx(ALONE * alone["of_a_task"][1])
    assert together["of_a_task"][2] <= together["seconds"], "all were attached at once"
    assert figures["x_2"] == pytest.approx(2 * alone["of_a_task"][1] / together["seconds"])
