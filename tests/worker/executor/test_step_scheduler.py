"""What an executor tells of how its tasks slow each other down: beside those who are there, and nothing of stalls."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from worker.executor.step_scheduler import StepScheduler
from worker.policy.deficit_round_robin import SliceCost
from worker.policy.job_record import JobKey
from worker.policy.step_time import StepLoad
from worker.replicas.packed_step import Stepped, Work

ALONE = 0.01  # seconds that a slice of any task takes alone


@dataclass
class Costs:
    """Replicas on which every slice takes the same."""

    pass_budget: int = 10**6
    count: int = 1
    sharded: bool = False
    launches_ahead: bool = False
    begun: bool = False
    whole: bool = True
    lead: float = 0.0

    def under_way(self, placement: str) -> bool:
        return self.begun

    def next_slice_costs(self, jobs: Any) -> dict[str, SliceCost]:
        return {job: SliceCost(ALONE, 100) for job, _ in jobs}

    def take_whole_steps(self, jobs: Any) -> bool:
        return self.count == 1 and self.whole

    def seconds_alone(self, load: StepLoad) -> float:
        return ALONE / 100 * load.tokens


class Job(str):
    """Hashed and compared as its task's name."""

    reference = None


def run(key: str) -> Any:
    return SimpleNamespace(key=JobKey(key, 0), job=Job(key), step=0, steps_until_due=lambda most: min(most, 60))


def placement(key: str) -> Any:
    return SimpleNamespace(placement_id=key, tenant_id=f"tenant {key}", weight=1.0, max_slowdown=3.0)


UNTOLD: Any = SimpleNamespace(slowed=lambda slowdown: None, worked=lambda *work: None)


class Shared:
    """A scheduler of tasks that all have work; a step of them takes `seconds`."""

    def __init__(self, replicas: int = 1) -> None:
        self.scheduler, self.replicas = StepScheduler(), Costs(count=replicas)

    def steps(self, keys: str, seconds: float, count: int, active: str | None = None, **stepped: Any) -> None:
        here = {key: placement(key) for key in keys}
        for _ in range(count):
            self.scheduler.choose(self.replicas, here, [run(key) for key in active or keys])  # type: ignore[arg-type]
            self.scheduler.record(
                Stepped({}, seconds, work={key: Work(tokens=100) for key in active or keys}, **stepped), lambda _: UNTOLD
            )

    def told(self, keys: str) -> list[float | None]:
        found = [self.scheduler.slowdown(key) for key in keys]
        return [None if one is None else one.times for one in found]

    def beside(self, key: str) -> str:
        """Whom its slowdown was measured beside."""
        slowdown = self.scheduler.slowdown(key)
        assert slowdown is not None
        return "".join(slowdown.beside)


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


@pytest.mark.parametrize(
    ("replicas", "sharded", "ahead", "others", "seconds", "expected"),
    [
        (2, False, False, False, 0.02, 60),  # until a job is looked at
        (2, False, False, False, 0.9, 33),  # for half a minute
        (2, False, False, False, 1.1, 1),  # a command would wait for two
        (1, False, False, False, 0.02, 1),
        (1, False, True, False, 0.02, 60),
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


@pytest.mark.parametrize(("lead", "expected"), [(0.0, 60), (0.02, 50), (0.05, 20), (0.09, 11)])
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
    """For a second: then it is asked again who takes part."""
    shared = Together()
    assert shared.choose("abc") == ("abc", 1, 1), "nobody knows how long a step takes"
    shared.record(0.05, a=100, b=100, c=100)
    assert shared.choose("abc") == ("abc", None, 20)
    shared.record(0.05, a=100, b=100, c=100)
    assert shared.choose("ab") == ("ab", None, 20), "a step of fewer takes no longer"
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
    assert shared.choose("abc")[2] == 50
    for tokens in (100, 450):  # of which the first was charged by the choice
        shared.record(0.02, a=100, b=tokens, c=100)
    left_out = []
    for _ in range(6):
        chosen = shared.choose("abc")
        left_out.append("abc".translate(dict.fromkeys(map(ord, chosen[0]))))
        shared.record(0.02, **dict.fromkeys(chosen[0], 100))
        assert (chosen[2] > 1) <= (chosen[0] == "abc")
    assert left_out == ["b"] * 3 + [""] * 3, "it took three and a half steps more than the others, and may owe a step"


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
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [one])[2] == 60  # type: ignore[arg-type]
    one.job.reference = "known"
    assert shared.scheduler.choose(shared.replicas, {"a": placement("a")}, [one])[2] == 1  # type: ignore[arg-type]
