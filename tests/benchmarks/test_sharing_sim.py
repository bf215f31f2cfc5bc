"""The replay of shared executors: its physics, its books, and that a plan which breaks a rule ends it."""

from dataclasses import replace

import pytest

from benchmarks.sharing_sim.fleet import Fleet, bases_of, bursts
from benchmarks.sharing_sim.idealised import least_completion
from benchmarks.sharing_sim.policies import POLICIES, PREEMPTING, SHARING
from benchmarks.sharing_sim.step_times import Part, speeds, step_seconds
from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.plan_checker import BadPlan


def arrivals(*seconds: int, gap: int = 1) -> list[Arrival]:
    """Tasks of 8 GPUs and a tenant each, of these true durations."""
    each = enumerate(seconds)
    return [Arrival(f"t{at}", at * gap, 8, round(s / 0.3), s, tenant=f"of {at}", batch_size=2) for at, s in each]


def replayed(tasks, policy: str, bases: int = 1, bound: float = 3.0):
    leave = 10 if policy in PREEMPTING else None
    fleet = Fleet(tasks, bases_of(tasks, bases, 0), POLICIES[policy], bound, 8, share=policy in SHARING, leave=leave)
    return fleet.replay()


def test_steps_take_what_was_measured() -> None:
    assert [step_seconds(2 * jobs) for jobs in (1, 16, 32)] == pytest.approx([0.0113, 0.072, 0.145])
    alone = [Part("a", 2, 1)]
    assert speeds(alone, 1) == [pytest.approx(1.0)]
    sixteen = speeds([Part(f"{at}", 2, 1) for at in range(16)], 1)
    assert sixteen == pytest.approx([0.0113 / 0.072] * 16)
    narrow = speeds([Part("wide", 2, 8), *(Part(f"{at}", 2, 1) for at in range(8))], 8)
    assert narrow[0] == pytest.approx(0.0113 / step_seconds(4)), "eight narrow ones lie on a GPU each"


def test_a_task_alone_takes_its_own_time() -> None:
    found = replayed(arrivals(1000), "ours")
    assert found.ended["t0"] == pytest.approx(60 + 1000)
    assert found.joins == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_task_ends_under_every_policy(policy: str) -> None:
    tasks = arrivals(5000, 400, 300, 2000, 100, 60, gap=50)
    found = replayed(tasks, policy, bases=2)
    assert set(found.ended) == {task.id for task in tasks}
    assert all(found.ended[task.id] >= task.at + task.true for task in tasks)


def test_joining_saves_what_exclusive_placement_waits_for() -> None:
    tasks = arrivals(10_000, 300, 300, 300, gap=100)
    ours, exclusive = replayed(tasks, "ours"), replayed(tasks, "exclusive")
    assert ours.joins == 3
    assert sum(ours.ended.values()) < 0.4 * sum(exclusive.ended.values())
    assert ours.ended["t0"] < 1.1 * exclusive.ended["t0"]
    assert max(ours.beside.values()) < 3


def test_a_preempted_task_pays_for_the_switch_and_ends_with_all_its_work() -> None:
    tasks = arrivals(10_000, 300, gap=1000)
    found, waits = replayed(tasks, "preempting"), replayed(tasks, "exclusive")
    assert (found.preempted, waits.preempted) == (1, 0)
    assert found.ended["t1"] == pytest.approx(1000 + 60 + 10 + 300)
    assert waits.ended["t1"] > 10_000
    pause = found.ended["t0"] - waits.ended["t0"]
    assert 10 + 300 + 60 <= pause <= 10 + 300 + 60 + 60, "leaving, the other's run, resuming, and at most a plan's delay"
    assert found.beside["t0"] == pytest.approx(1 + 60 / 10_000, abs=0.001), "what it ran for, over what it needs"


def test_an_executor_that_several_share_is_not_preempted() -> None:
    tasks = [*arrivals(10_000, 9000, gap=1000), replace(arrivals(20)[0], id="short", at=3000)]
    bases = {"t0": "b", "t1": "b", "short": "other"}
    alone = Fleet([tasks[0], tasks[2]], bases, POLICIES["ours"], 3.0, 8, leave=10).replay()
    shared = Fleet(tasks, bases, POLICIES["ours"], 3.0, 8, leave=10).replay()
    assert (alone.joins, alone.preempted) == (0, 1)
    assert (shared.joins, shared.preempted) == (1, 0)


def test_bursts_come_together_and_not_before_their_tasks() -> None:
    tasks = arrivals(*([100] * 45), gap=7)
    found = bursts(tasks, 20)
    assert len({task.at for task in found}) == 3
    assert all(late.at >= task.at for late, task in zip(found, tasks, strict=True))


def test_a_join_of_another_base_is_a_bad_plan() -> None:
    tasks = arrivals(5000, 300, gap=100)

    def wrong(problem):
        decision = POLICIES["ours"](problem)
        return replace(decision, joins=tuple(replace(join, node="elsewhere") for join in decision.joins))

    with pytest.raises(BadPlan, match="another base, width or node"):
        Fleet(tasks, dict.fromkeys(("t0", "t1"), "b"), wrong, 3.0, 8).replay()


def test_an_idealised_placement_shares_where_it_pays_and_serves_short_tasks_first() -> None:
    assert least_completion(arrivals(1000), 8) == pytest.approx(1000)
    apart = arrivals(1000, 600, gap=2000)
    assert least_completion(apart, 8) == pytest.approx(800), "nobody is slowed who is alone"
    shared = 1000 * step_seconds(4) / step_seconds(2)
    assert least_completion(arrivals(1000, 1000, gap=0), 8) == pytest.approx(shared), "two share, for 1.36 times as long each"
    long_first = arrivals(10_000, 100, gap=1000)
    assert least_completion(long_first, 8) <= (10_000 + 100 + 100) / 2 + 1, "a short one takes the GPUs, at no cost"
    assert least_completion(long_first, 16) == pytest.approx((10_000 + 100) / 2)
