"""How many whole steps tasks take before it is asked again who takes part, and what each owes for them."""

from typing import Any

import pytest

from tests.worker.executor.shared_steps import UNTOLD, Costs, Shared, placement, run
from worker.policy.deficit_round_robin import RunnableTask, allowances
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import Stepped, Work


@pytest.mark.parametrize(
    ("replicas", "sharded", "ahead", "others", "seconds", "expected"),
    [
        (2, False, False, False, 0.02, 120),  # until a job is looked at
        (2, False, False, False, 0.9, 33),  # for half a minute
        (2, False, False, False, 1.1, 1),  # a command would wait for two
        (1, False, False, False, 0.02, 1),
        (1, False, True, False, 0.02, 120),
        (1, False, True, False, 0.6, 1),  # a command would wait for two
        (1, False, True, True, 0.02, 1),
        (2, True, True, False, 0.02, 1),
        (2, False, False, True, 0.02, 1),
    ],
)
def test_replicas_that_have_one_task_meet_after_several_steps(
    replicas: int, sharded: bool, ahead: bool, others: bool, seconds: float, expected: int
) -> None:
    shared = Shared()
    shared.replicas = Costs(count=replicas, sharded=sharded, launches_ahead=ahead)

    def chosen(keys: str) -> tuple[Any, ...]:
        here = {key: placement(key) for key in keys}
        return shared.scheduler.choose(shared.replicas, here, [run(key) for key in keys], others)[1:]  # type: ignore[arg-type]

    assert chosen("a") == (None, 1), "nobody knows how long a step takes"
    shared.steps("a", seconds, 1)
    assert chosen("a") == (None, expected)
    assert chosen("b") == (None, 1), "nor a step of other jobs"
    assert chosen("ab") == (1, 1), "nor a step of both"
    shared.replicas.whole = False
    shared.steps("ab", seconds, 1)
    assert chosen("a") == (None, 1), "the last was a slice"


@pytest.mark.parametrize(("lead", "expected"), [(0.0, 120), (0.02, 50), (0.05, 20), (0.09, 11)])
def test_uneven_replicas_meet_before_one_is_a_second_ahead(lead: float, expected: int) -> None:
    shared = Shared()
    shared.replicas = Costs(count=2, lead=lead)
    shared.steps("a", 0.1, 1)
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [run("a")])[2] == expected  # type: ignore[arg-type]


def test_how_long_a_step_takes_is_what_all_of_a_window_took() -> None:
    """They are told in parts, of which the last may have taken long ago what it was told of just now."""
    shared = Shared(replicas=2)
    shared.steps("a", 0.9, 1)
    for seconds in (1.1, 0.9, 0.1):
        shared.scheduler.record(Stepped({}, seconds, work={"a": Work(tokens=100)}), lambda _: UNTOLD)
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [run("a")])[2] == 40  # type: ignore[arg-type]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_rest_of_a_step_that_was_begun_in_slices_does_not_say_how_long_steps_take(replicas: int) -> None:
    """Its neighbour has ended, and one of its slices is left; a whole step takes longer than a command may wait."""
    shared = Shared()
    shared.replicas = Costs(count=replicas, launches_ahead=True, begun=True)
    shared.steps("ab", 0.02, 3)

    def chosen() -> int:
        return shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [run("a")])[2]  # type: ignore[arg-type]

    assert chosen() == 1
    shared.steps("a", 0.02, 1)
    shared.replicas.begun = False
    assert chosen() == 1, "the rest of a step was measured"
    shared.steps("a", 8.0, 1)
    assert chosen() == 1, "a whole step"


class Together(Shared):
    """Tasks of one replica that launches ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.replicas = Costs(launches_ahead=True)

    def choose(self, keys: str, others: bool = False) -> tuple[str, int | None, int]:
        here = {key: placement(key) for key in keys}
        chosen = self.scheduler.choose(self.replicas, here, [run(key) for key in keys], others)  # type: ignore[arg-type]
        return "".join(one.key.placement for one in chosen[0]), *chosen[1:]

    def record(self, seconds: float, **tokens: int) -> None:
        work = {key: Work(tokens=count) for key, count in tokens.items()}
        self.scheduler.record(Stepped({JobKey(key, 0): 1.0 for key in tokens}, seconds, work=work), lambda _: UNTOLD)


def test_tasks_whose_whole_steps_fit_one_pass_take_several_of_them() -> None:
    """For five seconds: then it is asked again who takes part."""
    shared = Together()
    assert shared.choose("abc") == ("abc", 1, 1), "nobody knows how long a step takes"
    shared.record(0.05, a=100, b=100, c=100)
    assert shared.choose("abc") == ("abc", None, 100)
    shared.record(0.05, a=100, b=100, c=100)
    assert shared.choose("ab") == ("ab", None, 100), "a step of fewer takes no longer"
    shared.record(0.05, a=100, b=100)
    assert shared.choose("abd") == ("abd", 1, 1), "one has joined"
    shared.record(0.05, a=100, b=100, d=100)
    assert shared.choose("abd", others=True) == ("abd", 1, 1)
    shared.record(0.05, a=100, b=100, d=100)
    shared.replicas.whole = False
    assert shared.choose("abd") == ("abd", 1, 1), "a step in slices"
    shared.record(0.05, a=100, b=100, d=100)
    shared.replicas.whole, shared.replicas.pass_budget = True, 200
    chosen, slices, count = shared.choose("abd")
    assert (len(chosen), slices, count) == (2, 1, 1), "three do not fit one pass"


def test_who_took_more_of_several_steps_owes_it() -> None:
    """Later steps of a row have other batches than the first, which alone was looked at."""
    shared = Together()
    shared.choose("abc")
    shared.record(0.02, a=100, b=100, c=100)
    assert shared.choose("abc")[2] == 120, "until a job is looked at"
    for tokens in (100, 5350, 100):  # of which the first was charged by the choice; 100 take 0.01 s alone
        shared.record(0.02, a=100, b=tokens, c=100)
    assert shared.scheduler.asks_again
    left_out = []
    for _ in range(6):
        chosen = shared.choose("abc")
        left_out.append("abc".translate(dict.fromkeys(map(ord, chosen[0]))))
        shared.record(0.02, **dict.fromkeys(chosen[0], 100))
        assert (chosen[2] > 1) <= (chosen[0] == "abc")
    assert left_out == ["b"] * 2 + [""] * 4, "it owes 0.525 s, and may owe half a second"
    assert chosen[2] > 1
    assert not shared.scheduler.asks_again


@pytest.mark.parametrize(("one", "other"), [(1000, 1100), (100, 110), (100, 130)])
def test_tasks_of_unequal_steps_take_most_of_them_in_rows(one: int, other: int) -> None:
    """Who costs more stands at what it may owe: a row is not cut for that."""
    shared = Together()
    shared.replicas.tokens = {"a": one, "b": other}
    taken, rows = {"a": 0, "b": 0}, 0
    for _ in range(3000):
        keys, _, count = shared.choose("ab")
        for at in range(count):
            shared.record(0.0001 * (one + other), **{key: shared.replicas.tokens[key] for key in keys})
            rows += count > 1
            for key in keys:
                taken[key] += 1
            if shared.scheduler.asks_again:
                break
            assert at < count
    assert rows > 0.5 * max(taken.values())
    assert taken["a"] * one == pytest.approx(taken["b"] * other, rel=0.05), "equal progress"


def test_tenants_share_what_their_tasks_may_owe_and_urgent_ones_leave_others_less() -> None:
    many = [RunnableTask(f"m{at}", "many", 1.0, 10) for at in range(4)]
    assert allowances([*many, RunnableTask("one", "one", 1.0, 10)], 2.0) == {f"m{at}": 0.5 for at in range(4)} | {"one": 2.0}
    pressed = RunnableTask("pressed", "one", 1.0, 10, urgency=4.0)
    assert allowances([pressed, RunnableTask("calm", "two", 1.0, 10)], 2.0) == {"pressed": 2.0, "calm": 0.5}


def test_tasks_whose_steps_differ_by_chance_go_on_together() -> None:
    shared = Together()
    for longest in ("abc", "bca", "cab") * 20:  # one after another has the longest rows
        assert shared.choose("abc")[0] == "abc"
        for key in longest:
            shared.record(0.02, **{one: 300 if one == key else 100 for one in "abc"})
        assert not shared.scheduler.asks_again


def test_a_row_ends_once_a_task_owes_more_than_half_a_second_and_a_slice() -> None:
    shared = Together()
    shared.choose("abc")
    shared.record(0.02, a=100, b=100, c=100)
    assert shared.choose("abc")[2] > 1
    for _ in range(20):  # each takes 0.06 s alone, and b 0.01 more
        shared.record(0.02, a=600, b=700, c=600)
        assert not shared.scheduler.asks_again
    steps = next(at for at in range(1, 100) if shared.record(0.02, a=600, b=700, c=600) or shared.scheduler.asks_again)
    assert steps == pytest.approx(37, abs=1), "0.57 s of 0.01 s each, a slice of its own among them"


def test_a_row_ends_after_five_seconds_whatever_its_steps_were_to_take() -> None:
    shared = Together()
    shared.choose("ab")
    shared.record(0.02, a=100, b=100)
    assert shared.choose("ab")[2] > 1
    shared.record(0.02, a=100, b=100)
    for _ in range(9):
        shared.record(0.5, a=10000, b=10000)
        assert not shared.scheduler.asks_again
    shared.record(0.5, a=10000, b=10000)
    assert shared.scheduler.asks_again


def test_the_speed_of_tasks_in_a_row_of_steps_is_by_what_each_step_took() -> None:
    shared = Together()
    shared.choose("ab")
    shared.record(0.2, a=100, b=100)
    assert shared.choose("ab")[2] > 1
    for _ in range(40):
        shared.record(0.2, a=2000, b=500)
    a, b = shared.told("ab")
    assert a == pytest.approx(1.0, rel=0.05), "a step of 2,000 tokens takes 0.2 s alone"
    assert b == pytest.approx(4.0, rel=0.05)


def test_under_dpo_one_replica_takes_no_steps_in_a_row() -> None:
    """It launches none ahead."""
    shared, one = Shared(), run("a")
    shared.replicas = Costs(launches_ahead=True)
    shared.steps("a", 0.02, 2)
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [one])[2] == 120  # type: ignore[arg-type]
    one.job.reference = "known"
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [one])[2] == 1  # type: ignore[arg-type]
