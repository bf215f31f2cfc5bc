"""The comparison on real arrivals: windows as loaded as asked, runs that resume, figures beside their baseline."""

import json
from pathlib import Path

import pytest

from benchmarks.real_arrivals import cell_runs
from benchmarks.real_arrivals.cell_figures import POLICIES, cells_of, figures_of, rows_of, week_figures
from benchmarks.real_arrivals.cell_plot import draw_cells
from benchmarks.real_arrivals.cell_runs import run_cells
from benchmarks.real_arrivals.cells import ALONE, WEEK, Cell, run_cell
from benchmarks.real_arrivals.windows import GPUS, LOADS, REAL, SOURCES, chooses, window_of


@pytest.mark.parametrize("source", REAL)
def test_a_window_arrives_at_the_load_that_was_asked_for(source: str) -> None:
    for load in LOADS:
        tasks = window_of(source, load, 1)
        work = sum(task.true * task.gpus for task in tasks)
        assert work / (max(task.at for task in tasks) * GPUS) == pytest.approx(load, rel=0.01)


def test_windows_share_no_task_and_half_of_them_choose() -> None:
    for source in REAL:
        windows = [{task.id for task in window_of(source, 1.5, at)} for at in range(SOURCES[source].parts)]
        assert len(set.union(*windows)) == sum(map(len, windows))
        assert sum(map(chooses, range(len(windows)))) * 2 == len(windows)
        for at in range(len(windows), SOURCES[source].count):
            assert {task.id for task in window_of(source, 1.5, at)} == windows[at % len(windows)], "another seed of it"
            assert chooses(at) == chooses(at % len(windows))


def test_finished_runs_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "runs.jsonl"
    one, two = (Cell("acme", 2.5, 0, policy) for policy in ("fcfs", "easy_wsap"))
    first = run_cells([one], kept, workers=1)
    kept.write_text(kept.read_text() + '{"cut off')  # the machine went down in the middle of a line
    both = run_cells([one, two], kept, workers=1)
    assert both[one] == first[one], "with the plan times of its only run"
    assert len(kept.read_text().splitlines()) == 2
    monkeypatch.setattr(cell_runs, "fingerprint", lambda: "another planner")
    run_cells([one], kept, workers=1)
    assert [json.loads(line)["cell"]["policy"] for line in kept.read_text().splitlines()] == ["fcfs", "easy_wsap", "fcfs"]


def test_a_figure_stands_beside_its_baseline_and_the_held_out_half(tmp_path: Path) -> None:
    found = {}
    for cell in cells_of(None, fair=False):
        worse = {"ours": 0.9, "easy_wsap": 1.0}.get(cell.policy, 1.2) if chooses(cell.window) else 1.0
        means = {
            "utilisation": 0.5,
            "churn": 0.1,
            "replans_per_hour": 9,
            "preempted_per_hour": 0,
            "preempted_for_shorter_per_hour": 0,
            "slowdown_longest_max": 2.0,
            "plan_ms_p50": 5,
            "plan_cpu_ms_p50": 5.0,
            "plan_cpu_ms_p99": 20.0,
            "deadlines_missed": 0.0,
        }
        found[cell] = means | {
            "completion_mean": 100 * worse, "completion_weighted": 100 * worse, "slowdown_p99": 10 / worse, "plan_ms_p99": 50.0,
            "plan_cpu_ms_p50": 5.0,
            "plan_cpu_ms_p99": 20.0,
            "deadlines_missed": 0.0,
            "jain": 1.0, "together_seconds": 0.0, "tenants": {"a": 100.0 * worse},
        }  # fmt: skip
    figures = figures_of(found)
    assert figures["wct_vs_easy_wsap_real_min"] == figures["wct_vs_easy_wsap_real_mean"] == pytest.approx(0.05)
    assert figures["wct_vs_easy_wsap_real_min_held_out"] == 0
    assert figures["p99_vs_easy_wsap_real_worst"] == pytest.approx(1 - (1 / 0.9 + 1) / 2)
    rows = rows_of(found)
    assert {row["policy"] for row in rows if row["part"] == "acme"} == set(POLICIES)
    assert all(row["jain"] is None for row in rows), "nobody waited together"
    draw_cells("acme", rows, tmp_path / "acme.svg")
    assert (tmp_path / "acme.svg").read_text().count("<rect") == len(LOADS) * len(POLICIES) * 2 + len(POLICIES)


def test_a_tenants_slowdown_is_over_its_own_isolated_run() -> None:
    shared = run_cell(Cell("muri", 2.5, 0, "easy_wsap", fair=True))["tenants"]
    alone = run_cell(Cell("muri", 2.5, 0, ALONE))["tenants"]
    assert alone.keys() == shared.keys()
    assert sum(shared.values()) > sum(alone.values())
    week = {"completion_mean": 100.0, "jain": 0.9, "together_seconds": 7200.0}
    found = {
        Cell(WEEK, 0.0, 0, policy, fair=True): week | {"tenants": {"a": 20.0, "b": 30.0}} for policy in ("sjf", "easy_wsap")
    }
    found[Cell(WEEK, 0.0, 0, "ours", fair=True)] = week | {"tenants": {"a": 19.0, "b": 36.0}}
    found[Cell(WEEK, 0.0, 0, ALONE)] = {"tenants": {"a": 10.0, "b": 30.0}}
    assert week_figures(found)["philly_worst_tenant_vs_easy_wsap"] == pytest.approx(0.05)
