"""The simulator: every task ends once, on GPUs that were free; the judge sees what is wrong; ALTO's own model runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator.check import BadPlan, check
from benchmarks.simulator.engine import simulate
from benchmarks.simulator.metrics import metrics
from benchmarks.simulator.outcome import Outcome, Setup
from benchmarks.simulator.picture import draw
from benchmarks.simulator.policies import POLICIES, big_m
from benchmarks.simulator.workload import TRACES, Arrival, rolling, trace
from service.scheduler.problem import Node, Problem, Queued, Start


def outcome_of(tasks: list[Arrival], policy: str, setup: Setup) -> Outcome:
    *_, outcome = simulate(tasks, POLICIES[policy], setup)
    return outcome


@pytest.mark.parametrize("policy", ["fcfs", "easy", "sjf", "lpt", "easy_wsap"])
def test_every_task_runs_once_for_as_long_as_it_takes(policy: str) -> None:
    outcome = outcome_of(rolling(60, 16, 1.5, seed=1), policy, Setup(2))
    for ran in outcome.ran:
        ((_, start, end),) = ran.placed
        assert start >= ran.task.at
        assert end - start == ran.task.true
    assert 0 < metrics(outcome)["utilisation"] <= 1


def test_ours_completes_no_later_by_weight_than_in_order_of_arrival() -> None:
    tasks = rolling(40, 16, 2.0, seed=3)
    ours, fcfs = (metrics(outcome_of(tasks, policy, Setup(2)))["completion_weighted"] for policy in ("ours", "fcfs"))
    assert ours < fcfs


def test_a_tenant_under_its_due_gets_its_gpus_back_past_the_bound() -> None:
    hog = [Arrival(f"hog{at}", 0, 1, 100_000, 100_000, tenant="hog") for at in range(8)]
    late = [Arrival("late", 100, 4, 1000, 1000, tenant="late")]
    outcome = outcome_of([*hog, *late], "easy_wsap", Setup(1, fair=True, bound=600.0))
    started = {ran.task.id: ran.started for ran in outcome.ran}
    assert 690 < started["late"] <= 700
    assert outcome.record.covered_wait <= 600
    assert outcome.preempted == 4
    assert all(ran.ended is not None for ran in outcome.ran)


def test_the_judge_refuses_what_is_wrong() -> None:
    problem = Problem((Node("n", 2),), (), (Queued("a", 2, 1, (10,)), Queued("b", 1, 1, (5,))))
    good = [Start("a", "n", 0, 10, 2), Start("b", "n", 10, 15, 1)]
    assert check(problem, good) == 2
    for bad in (
        [good[0], replace(good[1], start=9, end=14)],
        [good[0], good[0]],
        [replace(good[1], end=16)],
        [replace(good[0], start=-1, end=9)],
    ):
        with pytest.raises(BadPlan):
            check(problem, bad)


def test_altos_own_model_finds_a_small_optimum() -> None:
    problem = Problem(
        (Node("n", 2),), (), tuple(Queued(f"q{at}", 1, 1, (seconds,)) for at, seconds in enumerate((3, 3, 2, 2, 2)))
    )
    decision = big_m(problem)
    assert (decision.status, decision.objective) == ("OPTIMAL", 6)


def test_the_traces_are_read_and_a_run_can_be_drawn(tmp_path: Path) -> None:
    for name in ("philly_week", "acme_kalos", "muri_philly_vc3"):
        tasks = trace(TRACES / f"{name}.csv.gz", seed=0, limit=50)
        assert len(tasks) == 50
        assert {task.gpus for task in tasks} <= {1, 2, 4, 8}
    draw(outcome_of(tasks[:20], "easy", Setup(2)), tmp_path / "run.svg", "muri <vc3>")
    assert "muri &lt;vc3&gt;" in (tmp_path / "run.svg").read_text()
