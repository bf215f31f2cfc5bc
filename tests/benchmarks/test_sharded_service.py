"""The walk over a sharded base, in small: a task that is posted to a real stack comes back as adapters that PEFT loads."""

from argparse import Namespace
from pathlib import Path

from benchmarks.sharded_service import measure


def test_a_task_posted_on_a_base_that_is_sharded_comes_back_as_the_adapters_of_all_jobs(tmp_path: Path) -> None:
    given = Namespace(device="cpu", shape="toy", gpus=2, asked=None, memory_gb=1.0, jobs=5, rank=16, steps=6, deadline_s=300)
    figures, rows, gate = measure(given, tmp_path)
    assert gate["passed"], gate
    assert gate["worst_error"] < 1e-5
    assert figures["adapters"] == len(rows) == 5
    assert 0 <= figures["placed_s"] <= figures["began_s"] <= figures["ended_s"]
    assert "sharded over 2 devices (4 of its 4 layers, embedding and head)" in rows[0]["what"]
