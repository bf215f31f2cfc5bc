"""Who steps next: shares follow rates whatever the sizes, nobody starves, budgets hold; against a reference of fluid shares."""

import math
from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.policy.deficit_round_robin import RunnableTask, charged, rates, select, urgency

COSTS = st.floats(0.5, 50.0)
TASKS = st.lists(
    st.tuples(st.lists(COSTS, min_size=1, max_size=4), st.floats(0.1, 10.0), st.integers(0, 2), st.integers(1, 400)),
    min_size=1,
    max_size=6,
)


class Run:
    """Tasks that always have work; each runs its slices in turn. served: by task, in the unit of the costs."""

    def __init__(self, tasks, budget=10**9, credit=0.0):
        self.tasks, self.budget, self.credit = tasks, budget, credit
        self.deficits, self.served = {}, defaultdict(float)
        self.turns, self.clock, self.history = defaultdict(int), 0.0, []

    def candidates(self):
        return [
            RunnableTask(str(key), str(tenant), costs[self.turns[str(key)] % len(costs)], tokens, weight)
            for key, (costs, weight, tenant, tokens) in enumerate(self.tasks)
        ]

    def step(self):
        before = self.candidates()
        said = select(before, self.deficits, self.budget, self.credit)
        gains = rates(before)
        for one in before:
            paid = one.cost if one.key in said.chosen else 0.0
            gained = said.deficits[one.key] + paid - self.deficits.get(one.key, 0.0)
            assert gained >= -1e-6
            assert gained / gains[one.key] == pytest.approx(self._clock(said, before, gains), rel=1e-6, abs=1e-6)
        self.clock += self._clock(said, before, gains)
        for one in before:
            if one.key in said.chosen:
                self.served[one.key] += one.cost
                self.turns[one.key] += 1
        self.deficits = said.deficits
        self.history.append(said.chosen)
        return said, before

    def _clock(self, said, before, gains):
        one = before[0]
        paid = one.cost if one.key in said.chosen else 0.0
        return (said.deficits[one.key] + paid - self.deficits.get(one.key, 0.0)) / gains[one.key]


@given(TASKS, st.integers(1, 1000), st.floats(0.0, 100.0))
def test_service_follows_rates_and_stays_within_a_slice_and_the_credit_of_fluid_shares(tasks, budget, credit):
    """The float reference: under fluid sharing, task i has got rate_i times the clock."""
    run = Run(tasks, budget, credit)
    for _ in range(60):
        said, before = run.step()
        assert said.chosen, "somebody always runs"
        tokens = [one.tokens for one in before if one.key in said.chosen]
        assert sum(tokens) <= budget or len(tokens) == 1
    gains = rates(run.candidates())
    for key, (costs, *_) in enumerate(tasks):
        assert -max(costs) - credit - 1e-6 <= run.deficits[str(key)] <= max(costs) + 1e-6
        ahead = run.served[str(key)] - gains[str(key)] * run.clock
        assert abs(ahead) <= max(costs) + credit + 1e-6 * run.clock * gains[str(key)] + 1e-6


@given(TASKS)
def test_nobody_waits_longer_than_the_others_need_for_its_share(tasks):
    run = Run(tasks, budget=1)  # one at a time, the worst case
    for _ in range(80):
        run.step()
    gains = rates(run.candidates())
    for key, (costs, *_) in enumerate(tasks):
        turns = [at for at, chosen in enumerate(run.history) if str(key) in chosen]
        # Between two turns it gains at most two slices; meanwhile every other gains by its rate, and may use two slices more.
        wait = 2 * max(costs) / gains[str(key)]
        others = sum((gains[str(o)] * wait + 2 * max(c)) / min(c) + 1 for o, (c, *_) in enumerate(tasks) if o != key)
        gaps = [b - a for a, b in zip([-1, *turns], [*turns, len(run.history)], strict=True)]
        assert max(gaps) <= others + 2


@given(st.lists(st.floats(0.9, 1.1), min_size=2, max_size=8))
def test_steps_of_about_one_size_are_packed_together(costs):
    run = Run([([cost], 1.0, at, 10) for at, cost in enumerate(costs)])
    for _ in range(100):
        run.step()
    packed = sum(map(len, run.history)) / (len(costs) * len(run.history))
    assert packed > 0.85, "a difference in size does not set tasks apart"


@pytest.mark.parametrize("count", [2, 7, 16])
def test_credit_keeps_tasks_together_whose_steps_differ_by_chance(count):
    random = Random(count)
    runs = [Run([([0.0], 1.0, at, 10) for at in range(count)], credit=credit) for credit in (0.0, 80.0)]
    for _ in range(1000):
        costs = [([random.uniform(0.5, 1.5)], 1.0, at, 10) for at in range(count)]
        for run in runs:
            run.tasks = costs
            run.step()
    without, with_credit = (sum(map(len, run.history)) for run in runs)
    assert without < with_credit == 1000 * count


def test_a_neighbour_of_long_rows_takes_turns_and_the_others_go_on():
    """A step of 60 beside two of 10, alike in weight: it runs each sixth time, and each task gets a third."""
    run = Run([([60.0], 1.0, 0, 16000), ([10.0], 1.0, 1, 750), ([10.0], 1.0, 2, 750)], budget=16384)
    for _ in range(600):
        run.step()
    assert run.turns["1"] == run.turns["2"] == pytest.approx(6 * run.turns["0"], rel=0.02)
    long = [at for at, chosen in enumerate(run.history) if "0" in chosen]
    assert max(b - a for a, b in pairwise(long)) <= 7


def test_a_tenant_with_many_tasks_has_one_tenants_share():
    run = Run([([1.0], 1.0, 0, 10), *(([1.0], 1.0, 1, 10) for _ in range(4))], budget=10)
    for _ in range(800):
        run.step()
    assert run.served["0"] == pytest.approx(sum(run.served[str(key)] for key in range(1, 5)), rel=0.02)


def test_weights_are_shares():
    run = Run([([1.0], 3.0, 0, 10), ([1.0], 1.0, 1, 10)], budget=10)
    for _ in range(400):
        run.step()
    assert run.served["0"] == pytest.approx(3 * run.served["1"], rel=0.02)


def test_who_comes_later_owes_and_is_owed_nothing():
    early = Run([([1.0], 1.0, 0, 10), ([1.0], 1.0, 1, 10)])
    for _ in range(50):
        early.step()
    candidates = [*early.candidates(), RunnableTask("2", "2", 1.0, 10)]
    said = select(candidates, early.deficits, 10**9)
    assert set(said.chosen) == {"0", "1", "2"}
    assert said.deficits.keys() == {"0", "1", "2"}
    assert select(candidates[:1], said.deficits, 10**9).deficits.keys() == {"0"}, "who left is forgotten"


def test_nobody_is_chosen_of_nobody():
    assert select([], {"0": 1.0}, 100).chosen == ()


@given(st.floats(0.0, 1.0), st.floats(1.0, 10.0))
def test_urgency_rises_as_progress_falls_to_its_bound(progress, bound):
    said = urgency(progress, bound)
    assert 1.0 <= said <= 8.0
    assert said >= urgency(min(1.0, progress + 0.1), bound)
    if progress < 1 / bound and bound >= 1.25:
        assert said > 1.5, "below its bound"
    assert urgency(progress, None) == 1.0
    assert not math.isnan(said)


def test_a_task_near_its_bound_is_served_before_one_that_is_not():
    run = [
        RunnableTask("near", "a", 1.0, 10, urgency=urgency(0.26, 4.0)),
        RunnableTask("far", "b", 1.0, 10, urgency=urgency(0.9, 4.0)),
    ]
    served, deficits = defaultdict(int), {}
    for _ in range(100):
        said = select(run, deficits, 10)
        deficits = said.deficits
        for key in said.chosen:
            served[key] += 1
    assert served["near"] > 1.3 * served["far"]


def test_slices_that_fill_the_budget_exactly_run_together():
    tasks = [RunnableTask(key, key, 1.0, 2048) for key in "ab"]
    assert select(tasks, {}, 4096).chosen == ("a", "b")
    assert select(tasks, {}, 4095).chosen == ("a",)


def test_charged_are_the_deficits_after_a_selection_of_all():
    tasks = [RunnableTask("a", "a", 1.0, 10), RunnableTask("b", "b", 3.0, 10, weight=2.0)]
    before = {"a": 0.5, "b": -0.25}
    said = select(tasks, before, 100, credit=100.0)
    assert said.chosen == ("a", "b")
    assert charged(tasks, before) == said.deficits == {"a": 0.0, "b": -2.25}
