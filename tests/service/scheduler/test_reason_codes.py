"""Why a task waits, in codes and numbers, on the plans that the solver makes."""

import json
from dataclasses import replace

from hypothesis import given, settings

from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.solve import solve
from service.scheduler.explain.reason_codes import Code, Reason, paused, reasons
from tests.service.scheduler.problems import problems
from tests.service.scheduler.test_invariants import QUICK

NODE = (PlanNode("n", 4),)


def why(problem: SchedulingProblem, **told) -> dict[str, Reason]:
    return {reason.task: reason for reason in reasons(problem, solve(problem, QUICK).starts, **told)}


def test_room_is_short_and_the_numbers_say_how_much() -> None:
    found = why(
        SchedulingProblem(NODE, (RunningExecutor("r", "n", 4, 100),), (Queued("a", 1, 100, (50,)), Queued("b", 4, 100, (60,))))
    )
    assert found["a"] == Reason(
        "a", Code.WAITING_FOR_CAPACITY, 1, 100, 150, "n", {"asked": 1, "free": 0, "fitting": 4, "ahead": 0, "soonest": 100}
    )
    assert (found["b"].place, found["b"].numbers["ahead"]) == (2, 1)


def test_a_quota_binds_and_a_task_beyond_it_has_no_start() -> None:
    tasks = (
        Queued("a", 2, 1, (50,), tenant="ada"),
        Queued("b", 2, 1, (60,), tenant="ada"),
        Queued("c", 4, 1, (9,), tenant="ada"),
    )
    found = why(SchedulingProblem(NODE, (), tasks, (Limit("ada", 2),)))
    assert found["b"].code == Code.WAITING_FOR_QUOTA
    assert found["b"].numbers == {"asked": 2, "limit": 2, "held": 2, "beside": 0}
    assert (found["c"].code, found["c"].start) == (Code.WAITING_FOR_QUOTA, None)


def test_a_hole_is_kept_for_a_larger_task() -> None:
    wide, narrow = Queued("wide", 4, 10_000, (100,)), Queued("narrow", 1, 10, (80,))
    found = why(SchedulingProblem(NODE, (RunningExecutor("r", "n", 2, 50),), (wide, narrow)))
    assert found["wide"].code == Code.WAITING_FOR_CAPACITY
    assert found["narrow"].code == Code.LARGER_TASK_RESERVED
    kept = {"reserved_task": "wide", "reserved_gpus": 4, "reserved_start": 50}
    assert found["narrow"].numbers == {"asked": 1, "free": 2, "room_asked": 1} | kept


def test_a_quota_is_kept_for_a_task_that_starts_later() -> None:
    """GPUs stand free all along, and no larger task is to have them."""
    nodes = PlanNode("wide", 4), PlanNode("narrow", 2)
    first, second = Queued("first", 4, 10_000, (100, None), tenant="ada"), Queued("second", 2, 10, (80, 80), tenant="ada")
    problem = SchedulingProblem(nodes, (RunningExecutor("r", "wide", 1, 50),), (first, second), (Limit("ada", 5),))
    found = why(problem)
    kept = {"reserved_task": "first", "reserved_gpus": 4, "reserved_start": 50}
    assert (found["second"].code, found["second"].start) == (Code.WAITING_FOR_QUOTA, 150)
    assert found["second"].numbers == {"asked": 2, "limit": 5, "held": 0, "beside": 0} | kept
    physical = why(replace(problem, nodes=nodes[:1], queued=(replace(first, seconds=(100,)), replace(second, seconds=(80,)))))
    assert physical["second"].code == Code.WAITING_FOR_QUOTA, "the GPUs are kept for it too"
    short = why(replace(problem, queued=(first, replace(second, seconds=(50, 50)))))
    assert short.keys() == {"first"}, "it has ended by then"


@settings(max_examples=100, deadline=None)
@given(problems())
def test_a_task_for_which_room_is_kept_is_named(problem: SchedulingProblem) -> None:
    for reason in reasons(problem, solve(problem, QUICK).starts):
        if reason.code == Code.LARGER_TASK_RESERVED:
            assert "reserved_task" in reason.numbers


def test_free_gpus_are_told_beside_what_the_task_takes_of_that_node() -> None:
    """It is planned for one of the large node's GPUs; of the small one's three free ones, kept for another, it takes two."""
    nodes = PlanNode("large", 2), PlanNode("small", 4), PlanNode("full", 8)
    runs = RunningExecutor("r", "large", 2, 20), RunningExecutor("s", "small", 1, 50), RunningExecutor("f", "full", 3, 50)
    wide = Queued("wide", 4, 10_000, (None, 100, None))
    narrow = Queued("narrow", 1, 10, (80, 80, None), needs=(1, 2, 1))
    problem = SchedulingProblem(nodes, runs, (wide, narrow))
    found = why(problem)["narrow"]
    assert (found.code, found.node) == (Code.LARGER_TASK_RESERVED, "large")
    assert [found.numbers[name] for name in ("asked", "free", "room_asked")] == [1, 3, 2]
    starts = solve(problem, QUICK).starts
    (held,) = (one for one in reasons(problem, starts, held={"narrow"}) if one.task == "narrow")
    assert (held.code, held.numbers) == (Code.SHORTER_TASKS_EXPECTED, {"asked": 1, "free": 3, "room_asked": 2})
    few = Queued("narrow", 1, 10, (80, 80, 80), needs=(1, 1, 8))
    freest = {one.task: one for one in reasons(replace(problem, queued=(wide, few)), starts)}["narrow"]
    assert [freest.numbers[name] for name in ("free", "room_asked")] == [3, 1], "not the five that are too few for it"


def test_only_a_drained_node_has_room() -> None:
    nodes = (PlanNode("n", 4), PlanNode("leaving", 4, drained=True))
    found = why(
        SchedulingProblem(
            nodes, (RunningExecutor("r", "n", 4, 100),), (Queued("a", 1, 100, (50, 50)), Queued("b", 1, 1, (None, 50)))
        )
    )
    assert {name: (reason.code, reason.start) for name, reason in found.items()} == {
        "a": (Code.NODE_DRAINED, 100), "b": (Code.NODE_DRAINED, None),
    }  # fmt: skip


def test_no_node_fits() -> None:
    found = why(SchedulingProblem(NODE, (), (Queued("wide", 8, 1, (None,)), Queued("deep", 1, 1, (None,)))))
    assert found["wide"].numbers == {"asked": 8, "largest": 4, "nodes": 1, "wide_enough": 0}
    assert found["deep"].numbers["wide_enough"] == 1
    assert why(SchedulingProblem((), (), (Queued("a", 1, 1, ()),)))["a"].code == Code.NO_NODE_FITS


def test_nodes_that_may_not_be_given_it() -> None:
    def barred(*bars: str) -> Reason:
        nodes = tuple(PlanNode(f"n{at}", 4) for at in range(len(bars)))
        kept = tuple((node.id, bar) for node, bar in zip(nodes, bars, strict=True))
        task = Queued("a", 1, 1, (None,) * len(bars), barred=kept)
        problem = SchedulingProblem(nodes, (), (task,))
        assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem
        return why(problem)["a"]

    assert (barred("not_understood").code, barred("refused").code) == (Code.NO_NODE_UNDERSTANDS, Code.NO_NODE_UNDERSTANDS)
    found = barred("not_understood", "quarantined")
    assert (found.code, found.start) == (Code.NODE_QUARANTINED, None)
    assert found.numbers == {"asked": 1, "nodes": 2, "node": "n1"}
    assert barred("not_understood", "not_applying").code == Code.NODE_QUARANTINED
    assert barred("quarantined", "resting").code == Code.BACKING_OFF


def test_another_tenants_turn_comes_first() -> None:
    mine, theirs = Queued("mine", 4, 10, (50,), tenant="hog"), Queued("theirs", 4, 1000, (50,), tenant="new")
    problem = SchedulingProblem(NODE, (RunningExecutor("r", "n", 4, 10),), (mine, theirs))
    standing = {"hog": 2.0, "new": 0.1}
    found = why(problem, standing=standing)
    assert found["mine"].code == Code.FAIR_SHARE
    assert found["mine"].numbers == {"asked": 4, "standing": 2.0, "other_standing": 0.1, "other_task": "theirs"}
    assert found["theirs"].code == Code.WAITING_FOR_CAPACITY
    assert why(replace(problem, queued=(theirs, mine)), standing=standing)["mine"].code == Code.WAITING_FOR_CAPACITY


def test_a_paused_task_says_so() -> None:
    assert paused("a") == Reason("a", Code.PAUSED)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_everyone_who_does_not_start_is_told_why_once(problem: SchedulingProblem) -> None:
    starts = solve(problem, QUICK).starts
    found = reasons(problem, starts)
    now = {start.task for start in starts if start.start == 0}
    assert [reason.task for reason in found] == [task.id for task in problem.queued if task.id not in now]
    assert sorted(reason.place for reason in found) == list(range(1, len(found) + 1))
    placeable = {task.id for task in problem.placeable}
    for reason in found:
        assert (reason.start is not None) == (reason.task in placeable)
        if reason.code == Code.NO_NODE_FITS:
            assert reason.task not in placeable


def test_a_quota_counts_types_by_what_they_can_do() -> None:
    """A limit of 4: four of the fast ones are its end, of the slower ones ten, and CPU slots are free of it."""
    nodes = (PlanNode("fast", 8), PlanNode("slower", 16, worth=0.4), PlanNode("slots", 16, worth=4e-5))
    runs = (RunningExecutor("r", "slots", 16, 500, "ada"), RunningExecutor("s", "slower", 5, 500, "ada"))

    def plan(gpus: int, *seconds: int | None) -> Reason | None:
        return why(SchedulingProblem(nodes, runs, (Queued("t", gpus, 1, seconds, tenant="ada"),), (Limit("ada", 4),))).get("t")

    assert plan(2, 10, None, None) is None, "five of the slower and two of the fast"
    beyond = plan(3, 10, None, None)
    assert beyond is not None
    assert (beyond.code, beyond.start, beyond.numbers["held"]) == (Code.WAITING_FOR_QUOTA, 500, 2)
    assert plan(5, None, 10, None) is None
    assert plan(6, None, 10, None).code == Code.WAITING_FOR_QUOTA
    never = plan(5, 10, None, None)
    assert (never.code, never.start) == (Code.WAITING_FOR_QUOTA, None)
