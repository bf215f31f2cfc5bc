"""The simulator: every task ends once, on GPUs that were free; the checker sees what is wrong; ALTO's own model runs."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator import policies
from benchmarks.simulator.arrivals import TRACES, Arrival, largest_tenants, rolling, trace
from benchmarks.simulator.engine import simulate
from benchmarks.simulator.named_runs import Run, run_all
from benchmarks.simulator.plan_checker import BadPlan, check
from benchmarks.simulator.policies import POLICIES, big_m
from benchmarks.simulator.run_metrics import jain, metrics
from benchmarks.simulator.run_plot import draw
from benchmarks.simulator.run_record import Outcome, Setup
from service.scheduler.core.decision import Decision
from service.scheduler.core.problem import PlanNode, Queued, SchedulingProblem, Start
from service.scheduler.core.problem_json import problem_from_json
from service.scheduler.core.rules import backfill
from service.scheduler.core.solve import BUDGET, solve

WHOLE = replace(BUDGET, wall=600.0)  # no guard strikes where the machine stalls: plans are the same each time


@pytest.fixture(autouse=True)
def whole_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "BUDGET", WHOLE)


def outcome_of(tasks: list[Arrival], policy: str, setup: Setup) -> Outcome:
    *_, outcome = simulate(tasks, POLICIES[policy], setup)
    return outcome


def rules(problem: SchedulingProblem) -> Decision:
    """What the planner falls back on."""
    return Decision(backfill(problem), "rules", 0)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "sjf", "lpt", "easy_wsap"])
def test_every_task_runs_once_for_as_long_as_it_takes(policy: str) -> None:
    outcome = outcome_of(rolling(60, 16, 1.5, seed=1), policy, Setup(2))
    for ran in outcome.ran:
        ((_, start, end),) = ran.placed
        assert start >= ran.task.at
        assert end - start == ran.task.true
    assert 0 < metrics(outcome)["utilisation"] <= 1


def test_a_switch_for_a_shorter_task_costs_what_it_takes_and_the_long_one_goes_on() -> None:
    tasks = [Arrival("long", 0, 1, 20_000, 20_000), Arrival("short", 1000, 1, 50, 50)]
    outcome = outcome_of(tasks, "ours", Setup(1, node_gpus=1, leave=10, resume=60))
    long, short = outcome.ran
    assert (outcome.for_shorter, outcome.preempted) == (1, 1)
    assert short.placed == [("node-000", 1000, 1060)], "it waits for 10 s on the GPU until the long one has left"
    assert long.placed == [("node-000", 0, 1000), ("node-000", 1060, 20_120)], "and that one resumes in 60 s"
    assert metrics(outcome)["slowdown_longest_max"] == 20_120 / 20_000
    waits = outcome_of(tasks, "ours", Setup(1, node_gpus=1))
    assert [ran.ended for ran in waits.ran] == [20_000, 20_050]


def test_ours_completes_no_later_by_weight_than_in_order_of_arrival() -> None:
    tasks = rolling(40, 16, 2.0, seed=3)
    ours, fcfs = (metrics(outcome_of(tasks, policy, Setup(2)))["completion_weighted"] for policy in ("ours", "fcfs"))
    assert ours < fcfs


def test_the_rules_alone_save_completion_and_slowdown_over_one_reservation_by_area() -> None:
    """Of crowded fleets, by a margin that is half of what thirty other seeds saved; the solver adds to it."""
    found: dict[str, list[dict[str, float]]] = {"rules": [], "easy_wsap": []}
    for seed in (301, 302):
        tasks = rolling(200, 64, 1.8, seed)
        for name, policy in (("rules", rules), ("easy_wsap", POLICIES["easy_wsap"])):
            *_, outcome = simulate(tasks, policy, Setup(8))
            found[name].append(metrics(outcome))
    for key, saved in (("completion_weighted", 0.03), ("slowdown_p99", 0.15)):
        ours, theirs = (sum(run[key] for run in found[name]) for name in ("rules", "easy_wsap"))
        assert ours < (1 - saved) * theirs, key


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
    problem = SchedulingProblem((PlanNode("n", 2),), (), (Queued("a", 2, 1, (10,)), Queued("b", 1, 1, (5,))))
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
    problem = SchedulingProblem(
        (PlanNode("n", 2),), (), tuple(Queued(f"q{at}", 1, 1, (seconds,)) for at, seconds in enumerate((3, 3, 2, 2, 2)))
    )
    decision = big_m(problem, seconds=600.0)
    assert (decision.status, decision.objective) == ("OPTIMAL", 6)


def test_the_traces_are_read_and_a_run_can_be_drawn(tmp_path: Path) -> None:
    for name in ("philly_week", "acme_kalos", "muri_philly_vc3"):
        tasks = trace(TRACES / f"{name}.csv.gz", seed=0, limit=50)
        assert len(tasks) == 50
        assert {task.gpus for task in tasks} <= {1, 2, 4, 8}
    draw(outcome_of(tasks[:20], "easy", Setup(2)), tmp_path / "run.svg", "muri <vc3>")
    assert "muri &lt;vc3&gt;" in (tmp_path / "run.svg").read_text()


def test_faster_nodes_are_told_apart_and_a_drained_one_gets_nothing_new() -> None:
    tasks = [Arrival(f"t{at}", 0, 8, 1000, 1000) for at in range(4)]
    outcome = outcome_of(tasks, "ours", Setup(2, speeds=(1.0, 4.0), drains=((0, 0, True), (300, 0, False))))
    placed = sorted((start, end, node) for ran in outcome.ran for node, start, end in ran.placed)
    assert placed[0] == (0, 250, "node-001")
    assert all(start >= 300 for start, _, node in placed if node == "node-000")
    assert {end - start for start, end, node in placed if node == "node-001"} == {250}


def test_a_task_alone_is_spread_over_idle_gpus() -> None:
    alone = [Arrival("t", 0, 2, 1000, 1000, max_gpus=8)]
    (ran,) = outcome_of(alone, "ours", Setup(1, widths=True)).ran
    assert ran.placed == [("node-000", 0, round(1000 / 1.8**2))]
    (ran,) = outcome_of(alone, "ours", Setup(1)).ran
    assert ran.placed == [("node-000", 0, 1000)]


def test_who_comes_after_a_task_that_was_spread_waits_no_longer_than_the_bound() -> None:
    """It holds the whole node for hours; then it goes on beside the other."""
    tasks = [Arrival("wide", 0, 1, 50_000, 50_000, tenant="a", max_gpus=8), Arrival("next", 100, 1, 20_000, 20_000, tenant="b")]
    outcome = outcome_of(tasks, "ours", Setup(1, fair=True, bound=600, widths=True))
    wide, following = outcome.ran
    assert following.started is not None
    assert following.started <= 700
    assert outcome.preempted == 1
    assert len(wide.placed) == 2
    assert wide.placed[1][1] <= 701, "at once"


def test_a_deadline_that_is_missed_was_foretold() -> None:
    tasks = [Arrival(f"t{at}", 0, 8, 100, 100, deadline=(at + 1) * 90) for at in range(3)]
    outcome = outcome_of(tasks, "ours", Setup(1))
    assert {ran.task.id for ran in outcome.ran if ran.ended > ran.task.deadline} == outcome.foretold == {"t0", "t1", "t2"}


def test_tenants_that_all_have_work_hold_alike() -> None:
    """One asks for far more and came first; nobody falls behind what it is owed for longer than the bound."""
    tasks = [Arrival(f"hog{at}", 0, 1, 40_000, 40_000, tenant="hog") for at in range(60)]
    for tenant in ("ada", "bo", "cy"):
        tasks += [Arrival(f"{tenant}{at}", 600, 1 << at % 3, 9000, 9000, tenant=tenant) for at in range(30)]
    outcome = outcome_of(tasks, "easy_wsap", Setup(2, fair=True, bound=1200.0, coalesce=60))
    assert metrics(outcome)["jain"] > 0.9
    assert outcome.record.covered_wait <= 1200


def test_an_exported_problem_is_planned_again_to_the_letter(tmp_path: Path) -> None:
    run = Run("small", tuple(rolling(12, 8, 2.0, seed=5)), "ours", Setup(1), export=tmp_path, plot=tmp_path)
    one, two = run_all([run, replace(run, name="again")], workers=1)
    assert one.checked == two.checked > 0
    assert (tmp_path / "small.svg").stat().st_size > 1000
    for line in (tmp_path / "small.jsonl").read_text().splitlines():
        said = json.loads(line)
        starts = solve(problem_from_json(said["problem"]), WHOLE).starts
        assert [[s.task, s.node, s.start, s.end, s.gpus] for s in starts] == said["starts"]


def test_a_trace_of_ones_own_is_read_plain_or_packed_and_scaled(tmp_path: Path) -> None:
    text = "submit_s,duration_s,gpus,tenant\n0,100,3,a\n90,50,1,b\n95,10,1,b\n"
    (tmp_path / "own.csv").write_text(text)
    with gzip.open(tmp_path / "own.csv.gz", "wt") as packed:
        packed.write(text)
    plain = trace(tmp_path / "own.csv", seed=1, scale=3)
    assert plain == trace(tmp_path / "own.csv.gz", seed=1, scale=3)
    assert [(t.at, t.true, t.gpus) for t in plain] == [(0, 100, 4), (30, 50, 1), (32, 30, 1)]
    assert {t.tenant for t in largest_tenants(plain, 1)} == {"a"}


def test_jain() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1
