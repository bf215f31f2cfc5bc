"""What an executor tells of how its tasks slow each other down: beside those who are there, and nothing of stalls."""

import pytest

from tests.worker.executor.shared_steps import ALONE, Shared


def test_a_slowdown_is_told_once_it_was_measured_for_some_seconds() -> None:
    shared = Shared()
    shared.steps("abcd", 2.5 * ALONE, 100)
    assert shared.told("abcd") == [None] * 4, "2.5 seconds"
    shared.steps("abcd", 2.5 * ALONE, 150)
    assert shared.told("abcd") == [pytest.approx(2.5)] * 4
    assert shared.told("e") == [None]


def test_who_stays_is_measured_anew_when_a_neighbour_leaves() -> None:
    """What was slow beside the one that left says nothing of those who stay: they would be asked to leave one after another."""
    shared = Shared()
    shared.steps("abcd", 4 * ALONE, 200)
    assert shared.told("abc") == [pytest.approx(4.0)] * 3
    assert shared.beside("b") == "acd"
    shared.steps("abc", 2 * ALONE, 1)
    assert shared.told("abcd") == [None] * 4
    shared.steps("abc", 2 * ALONE, 300)
    assert shared.told("abc") == [pytest.approx(2.0)] * 3
    assert shared.beside("b") == "ac"


def test_one_that_only_pauses_has_not_left() -> None:
    shared = Shared()
    shared.steps("abc", 3 * ALONE, 200)
    shared.steps("abc", 2 * ALONE, 1, active="ab")
    assert shared.beside("a") == "bc"
    shared.steps("abc", ALONE, 1, active="a")
    assert all(one is not None and one > 2.9 for one in shared.told("abc"))
    shared.steps("abc", ALONE, 3000, active="a")
    (slowdown,) = shared.told("a")
    assert slowdown is not None
    assert slowdown < 1.3, "it steps alone while the others wait"


def test_a_stall_is_no_slowdown() -> None:
    """A kernel compiles for ten seconds in one step: fewer neighbours would not have made it shorter."""
    shared = Shared()
    shared.steps("abcd", 2 * ALONE, 150)
    shared.steps("abcd", 10.0, 1)
    shared.steps("abcd", 2 * ALONE, 150)
    assert shared.told("abcd") == [pytest.approx(2.0, rel=0.05)] * 4


def test_a_neighbours_evaluation_slows_and_ones_own_does_not() -> None:
    shared = Shared()
    for _ in range(300):
        shared.steps("ab", 2 * ALONE, 1)
        shared.scheduler.record_evaluation(0.2 * ALONE, {"a": 200})
    assert shared.told("ab") == [
        pytest.approx(2.2 / 1.2, rel=1e-3),
        pytest.approx(2.2, rel=1e-3),
    ]


def test_an_evaluation_that_stalls_counts_as_what_its_tokens_may_take() -> None:
    shared = Shared()
    shared.steps("ab", 2 * ALONE, 300)
    shared.scheduler.record_evaluation(60.0, {"a": 50})  # a kernel compiles
    shared.scheduler.record_evaluation(1.0, {})  # it found no memory
    shared.steps("ab", 2 * ALONE, 1)
    assert shared.told("ab") == [pytest.approx(2.0, rel=0.02)] * 2
    shared.steps("ab", 60.0, 1)  # a kernel compiles in the step, and then in the evaluation
    shared.scheduler.record_evaluation(60.0, {"a": 50})
    assert shared.told("ab") == [pytest.approx(2.0, rel=0.05)] * 2


def test_an_evaluation_on_one_of_several_replicas_counts_whole() -> None:
    """The others wait meanwhile. A token takes one replica longer than a step, divided by the tokens of all, has it."""
    shared = Shared(replicas=4)
    for _ in range(300):
        shared.steps("ab", 2 * ALONE, 1)
        shared.scheduler.record_evaluation(0.3 * ALONE, {"a": 20})
    assert shared.told("ab")[1] == pytest.approx(2.3, rel=1e-3)


def test_preferences_are_the_own_work_of_tasks_under_dpo() -> None:
    shared = Shared()
    shared.steps("abc", 2 * ALONE, 1)  # a step of any kind says what a stall is; who stays is then measured anew
    shared.steps("ab", 2 * ALONE, 300, preference_seconds=0.5 * ALONE, preferring={"a": 100})
    assert shared.told("ab") == [pytest.approx(2.0 / 1.5), pytest.approx(2.0)]


def test_preferences_that_stall_count_as_what_their_tokens_may_take() -> None:
    shared = Shared()
    shared.steps("ab", 2 * ALONE, 300)
    shared.steps("ab", 60.0, 1, preference_seconds=59.0, preferring={"a": 100})  # a kernel compiles
    assert shared.told("ab") == [pytest.approx(2.0, rel=0.05)] * 2


def test_beside_nobody_nothing_is_told() -> None:
    shared = Shared()
    shared.steps("ab", 2 * ALONE, 400)
    assert shared.told("ab") == [pytest.approx(2.0)] * 2
    shared.steps("a", ALONE, 1)
    assert shared.told("ab") == [None, None]
