"""The pace of planning, on a clock of its own: what changes what runs is never put off, what only queues up is, in bounds."""

from itertools import pairwise

import pytest

from service.scheduler.replan_pacing import Pace, PlanCauses

CHANGED, ROOM, FULL = PlanCauses(True, False), PlanCauses(False, True), PlanCauses(False, False)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return Pace(clock)


def plan(pace, clock, took=0.01, moved=False):
    pace.begin()
    clock.now += took
    pace.end(moved)


@pytest.mark.parametrize("asked", [CHANGED, ROOM, FULL])
def test_the_first_plan_is_due_at_once(pace, asked):
    assert pace.wait(asked) == 0


@pytest.mark.parametrize("asked", [ROOM, FULL])
def test_arrivals_after_a_plan_that_moved_something_wait_for_twice_its_duration(pace, clock, asked):
    """Or a stream of arrivals that each start would be planned one by one, and a large fleet's plans would fill a core."""
    plan(pace, clock, took=0.03, moved=True)
    assert pace.wait(CHANGED) == 0
    assert pace.wait(asked) == pytest.approx(0.06)
    clock.now += 0.06
    assert pace.wait(asked) == 0


def test_a_change_is_planned_at_once_whatever_came_before(pace, clock):
    for _ in range(20):
        plan(pace, clock)
        assert pace.wait(CHANGED) == 0
        assert pace.wait(FULL) > 0


def test_where_an_arrival_may_fit_the_pause_is_twice_as_long_as_the_plan_before(pace, clock):
    for _ in range(20):
        plan(pace, clock, took=0.03)
        assert pace.wait(ROOM) == pytest.approx(0.06)
    clock.now += 0.05
    assert pace.wait(ROOM) == pytest.approx(0.01)


def test_pauses_before_a_full_fleet_grow_to_a_bound_and_begin_anew_once_the_burst_is_over(pace, clock):
    pauses = []
    for _ in range(8):
        plan(pace, clock)
        pauses.append(pace.wait(FULL))
        clock.now += pauses[-1]
        assert pace.wait(FULL) == 0
    assert all(earlier < later or earlier == later == 3.0 for earlier, later in pairwise(pauses))
    assert (pauses[0], pauses[-1]) == (pytest.approx(0.25), pytest.approx(3.0))
    clock.now += 60
    plan(pace, clock)
    assert pace.wait(FULL) == pytest.approx(0.25)


@pytest.mark.parametrize("took", [0.05, 0.2, 0.7])
def test_a_burst_costs_a_bounded_share_of_a_core(pace, clock, took):
    """Requests come all the time for a minute, and nothing that waits can start."""
    began, spent = clock.now, 0.0
    while clock.now < began + 60:
        clock.now += pace.wait(FULL)
        plan(pace, clock, took)
        spent += took
    share = max(1 / 9, took / (took + 3))
    assert spent <= share * (clock.now - began) + took  # the first is at once
