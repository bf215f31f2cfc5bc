"""Which width the planner's pure part gives to whom: nobody waits longer because another is wider."""

from dataclasses import replace

from hypothesis import given, settings

from service.scheduler.core.decision import SearchBudget
from service.scheduler.core.preemption.owed_gpus import Held, Preemptor, preemption
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Start, Width
from service.scheduler.core.solve import solve
from tests.service.scheduler.problems import problems

QUICK = SearchBudget(window=4, deterministic=0.005, polish=0.01)


@settings(max_examples=80, deadline=None)
@given(problems())
def test_widening_makes_nobody_later_and_ends_nothing_later(problem: SchedulingProblem) -> None:
    """Against the plan in which nobody may be wider: the same starts at the same moments, and some of them end sooner."""
    narrow = replace(problem, queued=tuple(replace(task, wider=()) for task in problem.queued))
    before = {start.task: start for start in solve(narrow, QUICK).starts}
    after = {start.task: start for start in solve(problem, QUICK).starts}
    assert after.keys() == before.keys()
    for task, start in after.items():
        assert start.start == before[task].start
        assert start.end <= before[task].end
        assert start == before[task] or (start.start == 0 and start.end < before[task].end), "wider only to end sooner, and now"


def task(name: str, *seconds: int, gpus: int = 1, nodes: int = 1, tenant: str = "") -> Queued:
    """Of widths gpus, 2 x gpus, ...: as many as there are durations."""
    first, *more = ((each,) * nodes for each in seconds)
    wider = tuple(Width(gpus << at, each) for at, each in enumerate(more, 1))
    return Queued(name, gpus, 1, first, wider=wider, tenant=tenant)


def planned(problem: SchedulingProblem) -> dict[str, Start]:
    return {start.task: start for start in solve(problem, QUICK).starts}


def test_what_waits_comes_before_who_would_be_wider() -> None:
    """Weighted completion alone would have the first on both GPUs; but others wait for the second."""
    node = (PlanNode("n", 2),)
    alone = planned(SchedulingProblem(node, (), (task("a", 100, 51),)))
    assert (alone["a"].gpus, alone["a"].end) == (2, 51)
    both = planned(SchedulingProblem(node, (), (task("a", 100, 51), task("b", 100))))
    assert {start.gpus for start in both.values()} == {1}
    crowd = planned(SchedulingProblem(node, (), (task("a", 100, 51), task("b", 100), task("c", 10))))
    assert {start.gpus for start in crowd.values()} == {1}


def test_it_takes_the_node_on_which_it_can_be_widest() -> None:
    """At its narrowest it would fit the hole of the first."""
    nodes = PlanNode("a", 4), PlanNode("b", 4)
    problem = SchedulingProblem(nodes, (RunningExecutor("r", "a", 3, 1000),), (task("t", 100, 60, 35, nodes=2),))
    assert planned(problem)["t"] == Start("t", "b", 0, 35, 4)
    other = planned(replace(problem, queued=(*problem.queued, task("u", 200, nodes=2))))
    assert (other["t"].node, other["t"].gpus) == ("b", 2), "beside the other"
    slower = replace(problem.queued[0], seconds=(100, 110), wider=(Width(2, (60, 66)), Width(4, (35, 40))))
    assert planned(replace(problem, queued=(slower,)))["t"].node == "a", "each width pays by what its own node takes"
    drained = replace(problem, nodes=(nodes[0], replace(nodes[1], drained=True)))
    assert planned(drained)["t"] == Start("t", "a", 0, 100, 1)


def test_a_reservation_ends_how_wide_a_task_may_be() -> None:
    """Four GPUs stand free until the wide one starts in 40 s, and two beside it."""
    problem = SchedulingProblem(
        (PlanNode("n", 8),), (RunningExecutor("r", "n", 4, 40),), (task("t", 100, 60, 45), task("wide", 10, gpus=6))
    )
    found = planned(problem)
    assert (found["t"].gpus, found["t"].end, found["wide"].start) == (2, 60, 40)
    sooner = replace(problem, queued=(task("t", 100, 60, 40), problem.queued[1]))
    assert planned(sooner)["t"].gpus == 4


def test_a_quota_bounds_the_width() -> None:
    problem = SchedulingProblem((PlanNode("n", 8),), (), (task("t", 100, 55, 30, tenant="ada"),), (Limit("ada", 3),))
    assert planned(problem)["t"].gpus == 2


def test_who_ends_last_is_widened_first() -> None:
    problem = SchedulingProblem((PlanNode("n", 4),), (), (task("short", 50, 30, 20), task("long", 100, 60, 40)))
    found = planned(problem)
    assert (found["long"].gpus, found["short"].gpus) == (2, 2)
    problem = SchedulingProblem((PlanNode("n", 3),), (), (task("short", 50, 30), task("long", 100, 60)))
    found = planned(problem)
    assert (found["long"].gpus, found["short"].gpus) == (2, 1)


def test_a_borrower_that_is_wider_than_it_must_goes_on_narrower() -> None:
    """It holds all there is, and its tenant is owed no more than its one task asks for at its narrowest."""
    wide = Held("wide", "ada", "n", 8, 1, 100, frozenset({"n"}), spare=7)
    preemptor = Preemptor("t", "bo", 1, 700, frozenset({"n"}))
    due = {"ada": 1.0, "bo": 1.0}
    found = preemption([preemptor], [wide], [PlanNode("n", 8)], due, bound=600)
    assert found is not None
    assert found.victims == (wide,)
    as_wide_as_it_must = replace(wide, spare=0)
    assert preemption([preemptor], [as_wide_as_it_must], [PlanNode("n", 8)], due, bound=600) is None, (
        "it would be left with nothing"
    )


def test_one_that_could_go_elsewhere_at_its_narrowest_is_moved_out_of_the_way() -> None:
    nodes = [PlanNode("a", 4), PlanNode("b", 4)]
    held = [Held("wide", "ada", "a", 4, 1, 100, frozenset({"a", "b"}), spare=3), Held("other", "bo", "b", 3, 1, 100)]
    preemptor = Preemptor("t", "bo", 4, 700, frozenset({"a"}))
    found = preemption([preemptor], held, nodes, {"ada": 4.0, "bo": 7.0}, bound=600)
    assert found is not None
    assert (found.node, found.victims) == ("a", (held[0],))
