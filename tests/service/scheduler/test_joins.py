"""Joins: who may share an executor, who gains by it, and that a plan with joins breaks no rule."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.core.checks.plan_checks import violations
from service.scheduler.core.decision import BatchPlan, Decision, Join
from service.scheduler.core.joins.joining import joined_plan_by_rules, settled
from service.scheduler.core.joins.slowdowns import Member, Sharing, slowdowns
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.solve import MalformedProblem, solve
from tests.service.scheduler.join_checks import join_violations

ONE = (PlanNode("n", 1),)


def sharing(group: str = "base", overhead: float = 0.6, room: float = 0.1, bound: float = 3.0) -> Sharing:
    return Sharing(group, overhead, room, bound)


def running(
    name: str = "r", remaining: int = 1000, node: str = "n", gpus: int = 1, tenant: str = "theirs", **more
) -> RunningExecutor:
    said = sharing(**more)
    return RunningExecutor(name, node, gpus, remaining, tenant, (Member(name, tenant, remaining, said, 100, gpus),))


def waiting(name: str, seconds: int = 100, nodes: int = 1, gpus: int = 1, tenant: str = "mine", **more) -> Queued:
    share = (sharing(**more),) * nodes
    return Queued(name, gpus, 100, (seconds,) * nodes, tenant=tenant, sharing=share)


def joins_of(problem: SchedulingProblem) -> dict[str, Join]:
    decision = solve(problem)
    assert list(join_violations(problem, decision)) == []
    return {join.task: join for join in decision.joins}


def test_a_task_joins_the_executor_of_its_base_rather_than_wait() -> None:
    join = joins_of(SchedulingProblem(ONE, (running(),), (waiting("t"),)))["t"]
    assert (join.beside, join.node, join.gpus, join.among) == ("r", "n", 1, 1)
    assert join.slowdown == pytest.approx(1.4)
    assert join.end == 141  # 1.4 times 100 s, and a second to attach
    assert join.sooner == 1100 - 141


@pytest.mark.parametrize(
    ("task", "run"),
    [
        ({"group": "another base"}, {}),
        ({"room": 0.95}, {}),
        ({"bound": 1.2}, {}),
        ({}, {"bound": 1.15}),
        ({"gpus": 1, "seconds": 3000}, {}),  # it would keep the GPU for longer than the task there
        ({}, {"remaining": 5}),  # waiting is over sooner
        ({"overhead": 0.0}, {"overhead": 0.0, "remaining": 100}),  # nothing is saved, and the one there would lose
    ],
)
def test_who_does_not_join(task, run) -> None:
    assert joins_of(SchedulingProblem(ONE, (running(**run),), (waiting("t", **task),))) == {}


def test_placing_comes_first() -> None:
    decision = solve(SchedulingProblem((PlanNode("n", 2),), (running(),), (waiting("t"),)))
    assert [start.start for start in decision.starts] == [0]
    assert decision.joins == ()


def test_nobody_joins_a_task_that_would_miss_its_deadline_by_it() -> None:
    """Beside the other it ends at 1040 s instead of 1000 s. One that is late in any case loses no more than others do."""
    for deadline, joins in ((1000, set()), (1039, set()), (1040, {"t"}), (999, {"t"})):
        run = running()
        run = replace(run, members=(replace(run.members[0], deadline=deadline),))
        assert joins_of(SchedulingProblem(ONE, (run,), (waiting("t"),))).keys() == joins, deadline


def test_a_batch_is_told_the_end_that_it_has_beside_the_joins() -> None:
    """It waited for a task that joins now, which slows the one that it still waits for."""
    batch = tuple(Queued(f"b{at}", 1, 1, (50,), batch="b") for at in range(2))
    decision = solve(SchedulingProblem(ONE, (running(),), (waiting("t"), *batch)))
    assert [join.task for join in decision.joins] == ["t"]
    (told,) = decision.batches
    assert told == BatchPlan("b", max(start.end for start in decision.starts), "rules")
    assert told.makespan == 1040 + 2 * 50


def test_nobody_joins_a_task_that_may_not_share_nor_a_drained_node() -> None:
    alone = replace(running(), members=())
    assert joins_of(SchedulingProblem(ONE, (alone,), (waiting("t"),))) == {}
    assert joins_of(SchedulingProblem((PlanNode("n", 1, drained=True),), (running(),), (waiting("t"),))) == {}
    barred = replace(waiting("t"), seconds=(None,), barred=(("n", "resting"),))
    assert joins_of(SchedulingProblem(ONE, (running(),), (barred,))) == {}


def test_joiners_come_until_a_bound_would_break() -> None:
    tasks = tuple(waiting(f"t{at}", 100 + at, tenant=f"of {at}") for at in range(12))
    found = joins_of(SchedulingProblem(ONE, (running(),), tasks))
    assert 0 < len(found) <= 5  # 0.6 + 6 x 0.4 is the bound of 3
    assert all(join.worst <= 3 + 1e-9 for join in found.values())


def test_a_joiner_is_slowed_more_where_that_keeps_its_neighbours_bound() -> None:
    problem = SchedulingProblem(ONE, (running(bound=1.45),), (waiting("t"),))
    assert joins_of(problem)["t"].slowdown == pytest.approx(1.68, abs=0.01)  # 1.4 if both were slowed alike
    slow = slowdowns(settled(problem, solve(problem)).running[0].members, 1)
    assert slow["r"] == pytest.approx(1.31, abs=0.01)  # at least a tenth below 1.45


def test_where_one_may_join_it_is_the_next_in_the_queue() -> None:
    """The last one gains most by a join, and would take the place of one that is over soon."""
    short = (waiting(f"short {at}", 100 + at, room=0.4) for at in range(5))
    problem = SchedulingProblem(ONE, (running(room=0.5),), (waiting("long", 300, room=0.4), *short))
    assert list(joins_of(problem)) == ["short 0"]


def test_more_tasks_of_each_tenant_join_where_every_tenant_has_one() -> None:
    """A second task of a tenant halves its share, which alone would slow both beyond the bound: 3.5 times for the first."""
    kinds = {
        tenant: sharing(overhead=part, room=0.01, bound=3.3) for tenant, part in zip("abc", (0.78, 0.65, 0.47), strict=True)
    }
    members = tuple(Member(f"r{tenant}", tenant, 1000, kind, 100) for tenant, kind in kinds.items())
    tasks = tuple(
        Queued(f"{tenant}{at}", 1, 100, (500,), tenant=tenant, sharing=(kind,))
        for at in range(7)
        for tenant, kind in kinds.items()
    )
    problem = SchedulingProblem(ONE, (RunningExecutor("ra", "n", 1, 1878, "a", members),), tasks)
    assert sorted(problem.queued[problem.row[name]].tenant for name in joins_of(problem)) == ["a", "b", "c"]
    slow = slowdowns(settled(problem, solve(problem)).running[0].members, 1)
    assert max(slow.values()) == pytest.approx(2.98, abs=0.01)


def test_a_task_may_join_one_that_starts_in_the_same_plan() -> None:
    decision = solve(SchedulingProblem(ONE, (), (waiting("long", 1000), waiting("short", 50, tenant="other"))))
    (start,) = (start for start in decision.starts if start.start == 0)
    assert [join.beside for join in decision.joins] == ([start.task] if start.task == "long" else [])


def test_a_narrow_task_joins_a_wide_executor_and_no_wide_one_a_narrow() -> None:
    nodes = (PlanNode("n", 8),)
    assert joins_of(SchedulingProblem(nodes, (running(gpus=8),), (waiting("t", gpus=1),)))["t"].gpus == 8
    assert "t" not in joins_of(
        SchedulingProblem(nodes, (running(gpus=1), running("s", gpus=7, group="other")), (waiting("t", gpus=8),))
    )


def test_a_quota_counts_a_part_of_a_shared_gpu() -> None:
    limits = (Limit("mine", 1),)
    nodes = (PlanNode("n", 2),)
    full = (running("own", tenant="mine", group="other"), running())
    assert joins_of(SchedulingProblem(nodes, full, (waiting("t"),), limits)) == {}
    assert "t" in joins_of(SchedulingProblem(nodes, (running("r"), running("s", group="other")), (waiting("t"),), limits))
    problem = SchedulingProblem(ONE, (running(),), (waiting("t"),), limits)
    after = settled(problem, solve(problem)).running[0]
    assert (after.units_of("mine", 1000), after.units_of("theirs", 1000)) == (500, 500)


def test_later_starts_are_planned_around_the_joined() -> None:
    problem = SchedulingProblem(ONE, (running(remaining=1000),), (waiting("t", 100), waiting("other", 50, group="another")))
    decision = solve(problem)
    assert [join.task for join in decision.joins] == ["t"]
    (later,) = decision.starts
    assert later.start >= 1040  # the executor ends 40 s later for the joined
    assert violations(settled(problem, decision), decision.starts) == []


def test_what_was_measured_corrects_the_prediction() -> None:
    slow = replace(running(), correction=2.5)
    assert joins_of(SchedulingProblem(ONE, (slow,), (waiting("t"),))) == {}


def test_a_problem_with_members_survives_json() -> None:
    problem = SchedulingProblem(ONE, (running(),), (waiting("t"),))
    assert problem_from_json(problem_to_json(problem)) == problem
    (member,) = problem_to_json(problem)["running"][0]["members"]
    assert "deadline" not in member, "a version that knows none reads it"
    late = replace(problem, running=(replace(running(), members=(replace(running().members[0], deadline=-5),)),))
    assert problem_from_json(problem_to_json(late)) == late
    plain = SchedulingProblem(ONE, (RunningExecutor("r", "n", 1, 5),), (Queued("t", 1, 1, (5,)),))
    assert "members" not in problem_to_json(plain)["running"][0]
    assert "sharing" not in problem_to_json(plain)["queued"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"members": (Member("x", "theirs", 5, sharing()),)}, "first member"),
        ({"members": (Member("r", "theirs", 5, sharing()), Member("s", "t", 5, sharing("other")))}, "several groups"),
        ({"members": (Member("r", "theirs", 0, sharing()),)}, "must be positive"),
        ({"members": (Member("r", "theirs", 5, sharing(overhead=1.0)),)}, "overhead"),
        ({"members": (Member("r", "theirs", 5, sharing(bound=0.5)),)}, "bound"),
        ({"correction": 0.5}, "correction"),
    ],
)
def test_malformed_members_are_named(change, words) -> None:
    with pytest.raises(MalformedProblem, match=words):
        solve(SchedulingProblem(ONE, (replace(running(), **change),), (waiting("t"),)))


def test_violations_say_what_is_wrong_with_a_join() -> None:
    def said(run: RunningExecutor, task: Queued) -> str:
        join = Join("t", "r", "n", 1, 100, 1, 1.4, 1.4)
        return "; ".join(join_violations(SchedulingProblem(ONE, (run,), (task,)), Decision((), "x", 0, joins=(join,))))

    assert said(running(), waiting("t")) == ""
    assert "another base" in said(running(), waiting("t", group="b"))
    assert "no room" in said(running(), waiting("t", room=0.95))
    assert "beyond its bound" in said(running(bound=1.1), waiting("t"))
    assert "not queued" in said(running(), waiting("u"))
    assert "may not share" in said(running(), replace(waiting("t"), sharing=()))


@st.composite
def problems(draw: st.DrawFn) -> SchedulingProblem:
    nodes = tuple(PlanNode(f"n{at}", draw(st.sampled_from((1, 2, 4)))) for at in range(draw(st.integers(1, 3))))
    groups, tenants = ("a", "b"), ("x", "y", "z")

    def share() -> Sharing:
        return Sharing(
            draw(st.sampled_from(groups)),
            draw(st.floats(0.05, 0.9)),
            draw(st.floats(0, 0.6)),
            draw(st.floats(1.1, 4)),
        )

    runs: list[RunningExecutor] = []
    for node in nodes:
        left = node.gpus
        while left and draw(st.booleans()):
            gpus, name = draw(st.integers(1, left)), f"r{len(runs)}"
            left -= gpus
            tenant, seconds = draw(st.sampled_from(tenants)), draw(st.integers(1, 500))
            member = Member(name, tenant, seconds, share(), draw(st.integers(1, 500)), gpus)
            runs.append(RunningExecutor(name, node.id, gpus, seconds, tenant, (member,)))
    queued = []
    for at in range(draw(st.integers(1, 8))):
        gpus, seconds, kind = draw(st.sampled_from((1, 1, 2))), draw(st.integers(1, 500)), share()
        fits = tuple(seconds if node.gpus >= gpus else None for node in nodes)
        queued.append(
            Queued(
                f"q{at}",
                gpus,
                draw(st.integers(1, 500)),
                fits,
                tenant=draw(st.sampled_from(tenants)),
                sharing=(kind,) * len(nodes),
            )
        )
    limits = (Limit("x", draw(st.integers(1, 3))),) if draw(st.booleans()) else ()
    return SchedulingProblem(nodes, tuple(runs), tuple(queued), limits)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_no_join_breaks_a_rule(problem: SchedulingProblem) -> None:
    for decision in (solve(problem), joined_plan_by_rules(problem)):
        assert list(join_violations(problem, decision)) == []
        after = settled(problem, decision)
        later = [start for start in decision.starts if start.start > 0]
        assert violations(after, later) == []
        placed = [start.task for start in decision.starts] + [join.task for join in decision.joins]
        assert len(placed) == len(set(placed))
        assert set(placed) == {task.id for task in problem.placeable}
        for run in after.running:
            slow = slowdowns(run.members, run.gpus, run.correction)
            assert all(slow[member.id] <= member.sharing.bound + 1e-6 for member in run.members if len(run.members) > 1)
