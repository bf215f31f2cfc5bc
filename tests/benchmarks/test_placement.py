"""The placement benchmark in small: real processes, fake nodes; and its gate, which must be able to say no."""

from dataclasses import replace

import pytest

from benchmarks.placement import Placed, Run, figures, gate, gate_of_runs, idle_while, measure, rows_of


def test_a_small_run_places_every_task_once() -> None:
    """A task lasts longer than a busy machine takes to submit the next one, so that no device could run them all."""
    run = measure(tasks=8, nodes=4, slots=1, rate=6.0, seconds=2.0)
    assert gate(replace(run, idle=[0.0]), 8)["passed"], "whatever the time on these cores"
    assert len(run.idle) == 8
    assert len({one.device for one in run.placed}) > 1
    found = figures(run)
    assert (
        0 < found["queued_to_placement_ms_p50"] < found["arrival_to_placement_ms_p50"] <= found["arrival_to_placement_ms_p99"]
    )


def test_more_work_than_the_devices_hold_is_planned_by_cp_sat() -> None:
    """Also where a submission takes half a second: two devices end one task a second."""
    run = measure(tasks=10, nodes=1, slots=2, rate=20.0, seconds=2.0)
    assert gate(replace(run, idle=[0.0]), 10)["passed"]
    found = figures(run)
    assert 0 < found["plans_with_cp_sat"] <= found["plans"] == sum(run.solver_statuses.values())
    assert found["stolen_s"] >= 0
    assert len(rows_of("contended", run)) == 11


FIRST = Placed("first", 0.0, 0.1, 0.2, 5.0, "n/0")
SECOND = Placed("second", 1.0, 1.1, 5.2, 6.0, "n/0")


def test_idle_time_is_what_was_free_while_a_task_waited() -> None:
    assert idle_while(SECOND, [FIRST, SECOND], 1) == pytest.approx(0.2)
    assert idle_while(SECOND, [FIRST, SECOND], 2) == pytest.approx(4.1)
    assert idle_while(FIRST, [FIRST, SECOND], 1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "flaw",
    [{"statuses": {"succeeded": 1, "failed": 1}}, {"overfull": 1}, {"idle": [0.1, 0.6]}, {"placed": [FIRST]}],
    ids=["failed", "overfull", "idle", "lost"],
)
def test_the_gate_refuses(flaw: dict[str, object]) -> None:
    good = Run([FIRST, SECOND], [0.3], [0.01], [0.5, 0.5], {"succeeded": 2}, 0, [0.1, 0.2])
    assert gate(good, 2)["passed"]
    assert not gate(replace(good, **flaw), 2)["passed"]
    assert gate_of_runs({"free": good, "contended": good}, 2)["passed"]
    for runs in ({"free": good, "contended": replace(good, **flaw)}, {"free": replace(good, **flaw), "contended": good}):
        assert not gate_of_runs(runs, 2)["passed"]
