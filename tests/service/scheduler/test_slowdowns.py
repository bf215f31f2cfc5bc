"""How tasks slow each other down on one executor, against the executor's own policy; and what the service learns of it."""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.core.gpu_types import hardware
from service.scheduler.core.joins.slowdowns import (
    MOST_CORRECTION,
    Member,
    Sharing,
    broken_bounds,
    correction_by,
    ends,
    roomy,
    slowdowns,
)
from service.scheduler.estimate.step_cost import StepCost, prior_step_cost, step_cost
from service.scheduler.estimate.throughput import ThroughputModel, key_of, measured
from service.scheduler.state.executors import corrected
from worker.policy.deficit_round_robin import RunnableTask, SpeedEstimate, select, urgency
from worker.policy.step_time import StepLoad, StepModel

ROW = 187
H200 = StepModel(7.25e-3, 1.083e-5, 0.0, 0.0)


def member(name: str, overhead: float = 0.6, remaining: int = 100, tenant: str = "", **more) -> Member:
    sharing = Sharing("base", overhead, more.pop("room", 0.1), more.pop("bound", 3.0), more.pop("tenants_weight", 1.0))
    return Member(name, tenant or f"of {name}", remaining, sharing, **more)


def test_alone_nobody_is_slowed() -> None:
    assert slowdowns([member("a")], 1) == {"a": 1.0}
    assert slowdowns([member("a")], 1, correction=2.0) == {"a": 1.0}


def test_alike_tasks_share_the_pass() -> None:
    slow = slowdowns([member(name) for name in "abcd"], 1)
    assert slow == pytest.approx(dict.fromkeys("abcd", 0.6 + 4 * 0.4))
    worse = slowdowns([member(name) for name in "abcd"], 1, correction=1.5)
    assert worse == pytest.approx(dict.fromkeys("abcd", 1.5 * 2.2))


def test_a_tenants_tasks_divide_its_weight() -> None:
    slow = slowdowns([member("a", bound=9), member("b", tenant="t", bound=9), member("c", tenant="t", bound=9)], 1)
    assert slow["b"] == slow["c"] == pytest.approx(2 * slow["a"])
    heavier = slowdowns([member("a"), member("b", tenants_weight=2.0)], 1)
    assert heavier["a"] == pytest.approx(2 * heavier["b"])


def simulated(batches: dict[str, tuple[str, int]], bound: float, budget: int = 16384, steps: int = 4000) -> dict[str, float]:
    """Slowdowns under the executor's own choice of steps: name to (tenant, rows a step). A full step lasts by the model."""
    deficits: dict[str, float] = {}
    made, clock = dict.fromkeys(batches, 0), 0.0
    seen = dict.fromkeys(batches, SpeedEstimate())

    def seconds(tokens: float) -> float:
        return H200.seconds(StepLoad(1, tokens, 0, 0))

    for _ in range(steps):
        candidates = [
            RunnableTask(n, t, seconds(rows * ROW), rows * ROW, urgency=urgency(seen[n].speed, bound))
            for n, (t, rows) in batches.items()
        ]
        chosen = select(candidates, deficits, budget)
        deficits = dict(chosen.deficits)
        spent = seconds(sum(batches[name][1] * ROW for name in chosen.chosen))
        clock += spent
        for name, (_, rows) in batches.items():
            steps_now = int(name in chosen.chosen)
            made[name] += steps_now
            seen[name] = seen[name].after(spent, steps_now * seconds(rows * ROW))
    return {name: clock / (made[name] * seconds(rows * ROW)) for name, (_, rows) in batches.items()}


@pytest.mark.parametrize("bound", [1.5, 3.0, 9.0])
@pytest.mark.parametrize(
    "batches",
    [
        {"a": ("x", 2), "b": ("y", 2)},
        {"a": ("x", 1), "b": ("y", 8)},
        {"a": ("x", 1), "b": ("y", 2), "c": ("z", 4), "d": ("w", 8)},
        {"a": ("x", 4), "b": ("y", 4), "c": ("y", 4)},
        {"a": ("x", 1), "b": ("x", 1), "c": ("y", 2), "d": ("z", 4)},
        {name: (name, 2) for name in "abcdefgh"},
    ],
)
def test_the_prediction_is_what_the_executor_does(batches, bound) -> None:
    found = simulated(batches, bound)
    members = []
    for name, (tenant, rows) in batches.items():
        overhead = StepCost(H200.per_pass, H200.per_token).overhead(rows * ROW)
        members.append(member(name, overhead, tenant=tenant, bound=bound))
    predicted = slowdowns(members, 1)
    for name, slow in found.items():
        assert predicted[name] == pytest.approx(slow, rel=0.12), (name, predicted, found)


@st.composite
def crowds(draw: st.DrawFn) -> list[Member]:
    tenants = draw(st.lists(st.sampled_from("xyz"), min_size=2, max_size=9))
    weights = {tenant: draw(st.floats(0.1, 10)) for tenant in "xyz"}
    return [
        member(
            str(at), draw(st.floats(0, 0.99)), tenant=tenant, bound=draw(st.floats(1.0, 9.0)), tenants_weight=weights[tenant],
            gpus=draw(st.integers(1, 4)),
        )
        for at, tenant in enumerate(tenants)
    ]  # fmt: skip


@given(crowds(), st.sampled_from((1.0, 1.0, 1.7)))
def test_the_predicted_progress_goes_by_weight_and_urgency(crowd: list[Member], correction: float) -> None:
    """As worker/policy/deficit_round_robin.py hands it out, which knows nothing of this prediction."""
    slow, tasks = slowdowns(crowd, 4, correction), Counter(one.tenant for one in crowd)
    rounds = [
        slow[one.id] * urgency(1 / slow[one.id], one.sharing.bound) * one.sharing.weight / tasks[one.tenant] for one in crowd
    ]
    assert rounds == pytest.approx([rounds[0]] * len(rounds), rel=1e-3)
    assert min(slow.values()) >= correction


@given(crowds(), st.sampled_from((1.0, 1.3, 2.0, 5.0)))
def test_the_correction_is_found_by_what_was_measured(crowd: list[Member], true: float) -> None:
    measured_ = slowdowns(crowd, 4, true)
    if len(crowd) > 1:
        for one in crowd:
            found = correction_by(crowd, 4, one.id, measured_[one.id])
            assert slowdowns(crowd, 4, found)[one.id] == pytest.approx(measured_[one.id], rel=1e-4)


def test_a_crowd_that_was_measured_beyond_its_bound_is_not_predicted_within_it_again() -> None:
    """Its executor is twice as slow as predicted. By the plain ratio the correction would be 1.68, and nobody beyond 2.96."""
    crowd = [
        Member(name, tenant, 100, Sharing("b", overhead, 0.1, 3.0))
        for name, tenant, overhead in (("a", "x", 0.85), ("b", "y", 0.85), ("c", "x", 0.7))
    ]
    seen = slowdowns(crowd, 1, 2.0)
    assert max(seen.values()) > 3.3
    assert correction_by(crowd, 1, "a", seen["a"]) == pytest.approx(2.0, abs=1e-3)
    assert broken_bounds(crowd, 1, correction_by(crowd, 1, "a", seen["a"]))


def test_a_narrow_task_slows_one_gpu_of_a_wide_executor() -> None:
    wide = member("wide", gpus=8)
    one = slowdowns([wide, member("n0")], 8)
    eight = slowdowns([wide, *(member(f"n{at}") for at in range(8))], 8)
    nine = slowdowns([wide, *(member(f"n{at}") for at in range(9))], 8)
    assert one == pytest.approx(dict.fromkeys(one, 1.4))
    assert eight["wide"] == pytest.approx(1.4)
    assert nine["wide"] == pytest.approx(1.8)


def test_who_stays_becomes_faster_as_others_end() -> None:
    both = [member("short", remaining=10), member("long", remaining=100)]
    found = ends(both, 1)
    assert found == {"short": 14, "long": 104}  # 14 s at 1.4 times, and the other 90 s alone
    assert ends([member("a", remaining=7)], 1) == {"a": 7}
    assert ends([], 1) == {}


def test_bounds_and_room() -> None:
    three = [member("a", bound=1.5), member("b"), member("c")]
    assert broken_bounds(three, 1) == ["a"]
    assert broken_bounds(three[:2], 1) == []
    close = [member("a", bound=1.45), member("b")]
    assert slowdowns(close, 1)["a"] == pytest.approx(1.31, abs=0.005)
    assert broken_bounds(close, 1) == []
    assert broken_bounds(close, 1, 1.01) == ["a"], "not a tenth below"
    assert roomy(three)
    assert roomy([member("a", room=0.7), member("b", room=0.1), member("c", room=0.2)]), "all of the memory, and no more"
    assert not roomy([member("a", room=0.6), member("b", room=0.5)])


MODEL = ThroughputModel(1_240_000_000, 2_480_000_000, hardware("NVIDIA H200"))


def test_before_any_measurement_the_prior_is_near_the_h200() -> None:
    guess = step_cost(MODEL)
    assert guess == prior_step_cost(MODEL)
    assert guess.per_pass == pytest.approx(H200.per_pass, rel=0.25)
    assert guess.per_token == pytest.approx(H200.per_token, rel=0.25)


def test_what_is_measured_teaches_the_pass_and_the_token() -> None:
    truth, profiles = StepCost(0.030, 2e-6), []
    for tokens in (300.0, 3000.0, 12_000.0):
        profile = None
        for _ in range(8):
            profile = measured(profile, tokens, truth.seconds(tokens))
        profiles.append((key_of("b", "bf16", "NVIDIA H200", tokens), profile))
    found = step_cost(ThroughputModel(MODEL.parameters, MODEL.weight_bytes, MODEL.hardware, tuple(profiles)))
    assert found.overhead(374) == pytest.approx(truth.overhead(374), abs=0.06)
    assert found.overhead(12_000) == pytest.approx(truth.overhead(12_000), abs=0.15)


@pytest.mark.parametrize("seconds", [lambda t: 0.01, lambda t: t * 1e-5, lambda t: 0.05 - t * 2e-6])
def test_no_measurement_makes_a_cost_negative(seconds) -> None:
    profiles = tuple(
        (key_of("b", "bf16", "NVIDIA H200", tokens), measured(None, tokens, seconds(tokens)))
        for tokens in (100.0, 4000.0, 16_000.0)
    )
    found = step_cost(ThroughputModel(MODEL.parameters, MODEL.weight_bytes, MODEL.hardware, profiles))
    assert found.per_pass > 0
    assert found.per_token > 0
    assert math.isfinite(found.seconds(1e6))
    assert 0 < found.overhead(374) < 1


def test_a_correction_that_an_older_version_stored_is_bounded() -> None:
    members = [member("a"), member("b")]
    there = [
        SimpleNamespace(task=SimpleNamespace(id=one.id), placed=SimpleNamespace(current_slowdown=None, correction=20.0))
        for one in members
    ]
    assert corrected(there, members, 1) == MOST_CORRECTION
