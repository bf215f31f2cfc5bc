"""Preempting running tasks for shorter ones: when it pays, when it never happens; random problems keep every rule."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from service.scheduler.core.decision import SearchBudget, ShortPreemption
from service.scheduler.core.joins.joining import held_units, settled
from service.scheduler.core.joins.slowdowns import Member, Sharing
from service.scheduler.core.preemption import shortest_remaining
from service.scheduler.core.preemption.shortest_remaining import around, shorter_first
from service.scheduler.core.problem import (
    NEVER,
    Arrived,
    Limit,
    PlanNode,
    Preemptible,
    Queued,
    RunningExecutor,
    SchedulingProblem,
    Start,
)
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.rules import by_rule
from service.scheduler.core.solve import solve
from tests.service.scheduler.problems import problems

QUICK = SearchBudget(window=4, deterministic=0.0005)
HOUR, LEAVE, RESUME = 3600, 10, 60
NODE = (PlanNode("n", 2),)
LONG = RunningExecutor("long", "n", 1, 20 * HOUR, "ada", preemptible=Preemptible(100, HOUR, HOUR, RESUME))
LONGER = replace(LONG, id="longer", remaining=30 * HOUR)
SHORT = Queued("short", 1, 100, (60,), tenant="ada", preempts=100)
BUSY = SchedulingProblem(NODE, (LONG, LONGER), (SHORT,), leave=LEAVE)


def made(problem: SchedulingProblem) -> list[ShortPreemption]:
    return list(shorter_first(problem, solve(problem, QUICK)))


def test_a_short_task_takes_the_gpu_of_the_task_that_has_most_left() -> None:
    assert made(BUSY) == [ShortPreemption("short", "n", ("longer",), 60, 20 * HOUR - LEAVE)]


def test_nobody_is_preempted_where_it_does_not_pay() -> None:
    assert made(replace(BUSY, leave=None)) == [], "it is switched off"
    assert made(replace(BUSY, nodes=(PlanNode("n", 3),))) == [], "a GPU is free"
    soon = tuple(replace(run, remaining=100) for run in BUSY.running)
    assert made(replace(BUSY, running=soon)) == [], "they end before a switch pays"
    for left, gains in ((140, 0), (141, 1)):  # both pay for leaving, running and resuming: 70 s and 60 s beside 10 s
        ends = tuple(replace(run, remaining=left) for run in BUSY.running)
        assert len(made(replace(BUSY, running=ends))) == gains
    hours = replace(SHORT, seconds=(20 * HOUR,))
    assert made(replace(BUSY, queued=(hours,))) == [], "it is as long as what is left"
    heavy = tuple(replace(run, preemptible=Preemptible(100_000, HOUR, HOUR, RESUME)) for run in BUSY.running)
    assert made(replace(BUSY, running=heavy)) == [], "they weigh more"
    due = tuple(replace(run, preemptible=Preemptible(100, HOUR, HOUR, RESUME, run.remaining + 60)) for run in BUSY.running)
    assert made(replace(BUSY, running=due)) == [], "they would miss their deadlines"
    late = tuple(replace(run, preemptible=Preemptible(100, HOUR, HOUR, RESUME, run.remaining + 130)) for run in BUSY.running)
    assert len(made(replace(BUSY, running=late))) == 1, "they would still meet them"
    assert made(replace(BUSY, running=tuple(replace(run, preemptible=None) for run in BUSY.running))) == []
    assert made(replace(BUSY, queued=(replace(SHORT, preempts=0),))) == []
    assert made(replace(BUSY, nodes=(PlanNode("n", 2, drained=True),))) == []
    assert made(replace(BUSY, queued=(replace(SHORT, batch="b"),))) == [], "a batch is planned as one"
    assert shorter_first(BUSY, replace(solve(BUSY, QUICK), held=("short",))) == (), "it is held back itself"


def test_a_task_that_was_preempted_often_is_preempted_no_more() -> None:
    """The short one would wait for 1,200 times its run; the long ones take 31 hours and came 7 years ago."""
    often = Preemptible(100, 60_000 * HOUR, HOUR, RESUME)
    assert made(replace(BUSY, running=tuple(replace(run, preemptible=often) for run in BUSY.running))) == []
    waited = tuple(replace(run, preemptible=often) for run in BUSY.running)
    assert len(made(replace(BUSY, running=waited, queued=(replace(SHORT, waited=120_000 * HOUR),)))) == 1, "it waited longer"
    assert len(made(replace(BUSY, queued=(replace(SHORT, ran=100 * HOUR),)))) == 1, "it has run, and waits all the same"
    once = Preemptible(100, 500 * HOUR, HOUR, RESUME)
    assert len(made(replace(BUSY, running=tuple(replace(run, preemptible=once) for run in BUSY.running)))) == 1


def test_a_tenant_gives_another_only_what_it_holds_beyond_its_due() -> None:
    theirs = replace(BUSY, queued=(replace(SHORT, tenant="bo"),), dues=(("ada", 1.0), ("bo", 1.0)))
    assert len(made(theirs)) == 1
    assert made(replace(theirs, dues=(("ada", 2.0), ("bo", 0.0)))) == []
    assert len(made(replace(BUSY, dues=(("ada", 2.0), ("bo", 0.0))))) == 1, "of its own it may"


def test_gpus_beyond_a_due_count_by_what_they_are_worth() -> None:
    """ada's two are worth one of the fastest type: beside a due of half of one, one of them is lent."""
    slow = replace(BUSY, nodes=(PlanNode("n", 2, worth=0.5),), queued=(replace(SHORT, tenant="bo"),))
    assert len(made(replace(slow, dues=(("ada", 0.5), ("bo", 1.0))))) == 1
    assert made(replace(slow, dues=(("ada", 0.6), ("bo", 1.0)))) == []


def test_it_takes_the_gpu_where_all_gain_most() -> None:
    light = replace(LONG, id="light", node="m", preemptible=Preemptible(50, HOUR, HOUR, RESUME))
    for nodes in ((PlanNode("n", 1), PlanNode("m", 1)), (PlanNode("m", 1), PlanNode("n", 1))):
        (one,) = made(replace(BUSY, nodes=nodes, running=(LONG, light), queued=(replace(SHORT, seconds=(60, 60)),)))
        assert (one.node, one.victims) == ("m", ("light",))


def test_victims_lose_least_for_each_gpu_and_none_gives_what_nobody_needs() -> None:
    def run(id: str, gpus: int, weight: int) -> RunningExecutor:
        return replace(LONG, id=id, gpus=gpus, preemptible=Preemptible(weight, HOUR, HOUR, RESUME))

    def taken(gpus: int, *running: RunningExecutor) -> list[set[str]]:
        nodes = (PlanNode("n", sum(one.gpus for one in running)),)
        wide = replace(SHORT, gpus=gpus, preempts=10_000)
        return [set(one.victims) for one in made(replace(BUSY, nodes=nodes, running=running, queued=(wide,)))]

    assert taken(2, run("a", 1, 80), run("b", 1, 80), run("wide", 2, 100)) == [{"wide"}]
    (victims,) = taken(4, run("a", 1, 100), run("b", 1, 101), run("wide", 3, 330))
    assert victims == {"a", "wide"}, "b would give a fifth"


def test_so_many_are_preempted_in_a_plan_and_fewer_where_many_wait(monkeypatch) -> None:
    running = tuple(replace(LONG, id=f"r{at}") for at in range(12))
    queue = tuple(replace(SHORT, id=f"s{at}", preempts=10_000) for at in range(12))
    many = replace(BUSY, nodes=(PlanNode("n", 12),), running=running, queued=queue)
    assert len(made(many)) == shortest_remaining.MOST
    monkeypatch.setattr(shortest_remaining, "PLANNED_TASKS", 3 * len(queue))
    assert len(made(many)) == 3
    monkeypatch.setattr(shortest_remaining, "PLANNED_TASKS", 1)
    assert len(made(many)) == 1


def test_a_victim_waits_for_its_own_node_with_what_it_has_left() -> None:
    """Its executor's checkpoint is there; the other node is free sooner."""
    soon = RunningExecutor("soon", "m", 1, 30)
    short = replace(SHORT, seconds=(5 * HOUR, None), preempts=10_000)
    problem = replace(BUSY, nodes=(*NODE, PlanNode("m", 1)), running=(*BUSY.running, soon), queued=(short,))
    decision = solve(problem, QUICK)
    (one,) = shorter_first(problem, decision)
    starts, held = around(problem, decision, [one])
    begins = LEAVE + 5 * HOUR
    assert (starts, held) == ((Start("longer", "n", begins, begins + RESUME + 30 * HOUR, 1),), ())


def test_several_victims_together_leave_their_tenant_its_due() -> None:
    """Each of them alone would: ada holds two GPUs, one of which it is owed."""
    wide = replace(BUSY, queued=(replace(SHORT, gpus=2, tenant="bo"),), dues=(("ada", 1.0), ("bo", 2.0)))
    assert made(wide) == []
    assert [set(one.victims) for one in made(replace(wide, dues=(("ada", 0.0), ("bo", 2.0))))] == [{"long", "longer"}]


def test_of_an_executor_that_tenants_share_each_holds_its_part() -> None:
    """ada holds a GPU, and half of another: it is owed one, so that half a GPU is lent, and no task of it may be taken."""
    sharing = Sharing("base", 0.8, 0.3, 3.0)
    members = (Member("long", "ada", 20 * HOUR, sharing), Member("theirs", "cy", 20 * HOUR, sharing))
    shared = replace(LONG, members=members, remaining=30 * HOUR, preemptible=None)
    theirs = replace(BUSY, running=(shared, LONGER), queued=(replace(SHORT, tenant="bo"),))
    assert made(replace(theirs, dues=(("ada", 1.0), ("bo", 1.0)))) == []
    assert len(made(replace(theirs, dues=(("ada", 0.5), ("bo", 1.0))))) == 1
    assert made(replace(BUSY, limits=(Limit("ada", 2),))) == [], "its quota is used up"


def test_ten_short_tasks_take_one_after_the_other_what_one_switch_gives() -> None:
    """Each further victim would cost more than waiting for the first ones costs."""
    queue = tuple(replace(SHORT, id=f"s{at}", seconds=(30,)) for at in range(10))
    assert len(made(replace(BUSY, queued=queue))) == 2
    slow = tuple(replace(run, preemptible=Preemptible(100, HOUR, HOUR, 6 * HOUR)) for run in BUSY.running)
    assert len(made(replace(BUSY, running=slow, queued=queue))) == 1


def test_no_task_is_held_back_for_arrivals_that_can_preempt_it() -> None:
    running = tuple(RunningExecutor(f"r{at}", "n", 1, (4 + at) * HOUR) for at in range(7))
    recent = tuple(Arrived(600 * (at + 1), 1, 60) for at in reversed(range(40)))
    long = Queued("long", 1, 100, (20 * HOUR,))
    problem = SchedulingProblem((PlanNode("n", 8),), running, (long,), recent=recent)
    assert by_rule(problem)[1] == ("long",)
    assert by_rule(replace(problem, leave=LEAVE))[1] == ()
    assert by_rule(replace(problem, leave=LEAVE, queued=(replace(long, batch="b"),)))[1] == ("long",), (
        "a batch's is not preempted"
    )


@st.composite
def preempting(draw: st.DrawFn) -> SchedulingProblem:
    """A problem whose running tasks may be preempted, most of them long, with ages, dues and deadlines."""
    problem = draw(problems())
    longer = draw(st.sampled_from((1, 20, 400)))

    def costed(run: RunningExecutor) -> RunningExecutor:
        ran = draw(st.integers(0, 300))
        cost = Preemptible(
            draw(st.integers(1, 5)), ran + draw(st.integers(0, 3000)), ran, draw(st.integers(0, 30)),
            draw(st.sampled_from((None, None, 300, 9000))),
        )  # fmt: skip
        return replace(run, remaining=run.remaining * longer, preemptible=draw(st.sampled_from((cost, cost, cost, None))))

    dues = draw(st.sampled_from(((), (("", 2.0), ("ada", 3.0), ("bo", 1.0)))))
    queued = tuple(
        replace(task, preempts=draw(st.integers(0, 5)), ran=draw(st.integers(0, 40)), waited=draw(st.integers(0, 900)))
        for task in problem.queued
    )
    running = tuple(costed(run) for run in problem.running)
    return replace(problem, running=running, queued=queued, leave=draw(st.integers(0, 10)), dues=dues)


@settings(max_examples=300, deadline=None)
@given(preempting())
def test_random_preemptions_keep_every_rule(problem: SchedulingProblem) -> None:
    decision = solve(problem, QUICK)
    leave = problem.leave or 0
    state = settled(problem, decision)
    before = {run.id: run for run in problem.running}
    gone, taken = set[str](), set[str]()
    for one in shorter_first(problem, decision):
        task = next(task for task in state.queued if task.id == one.task)
        victims = [before[victim] for victim in one.victims]
        node = next(node for node in problem.nodes if node.id == one.node)
        assert one.task not in taken
        assert gone.isdisjoint(one.victims)
        assert one.task not in decision.held or taken, "what is held back takes nothing back"
        gone |= {*one.victims}
        taken.add(one.task)
        begun = RunningExecutor(task.id, one.node, task.gpus, leave + one.seconds, task.tenant)
        state = replace(state, running=(*(run for run in state.running if run.id not in one.victims), begun))
        assert not node.drained
        assert sum(run.gpus for run in state.running if run.node == node.id) <= node.gpus
        assert task.seconds[problem.nodes.index(node)] == one.seconds
        waits = one.sooner + leave
        without = (task.waited + task.ran + waits + one.seconds) / (task.ran + one.seconds)
        for run in victims:
            cost = run.preemptible
            assert cost is not None
            assert run.node == one.node
            assert run.remaining > one.seconds + leave, "a victim can never preempt its preemptor: it has more left"
            end = leave + one.seconds + cost.resume + run.remaining
            assert (cost.age + end) / (cost.ran + run.remaining) < without, "nobody is slowed beyond the preemptor"
            assert cost.deadline is None or end <= cost.deadline
            if problem.dues and run.tenant != task.tenant:
                left = sum(
                    r.gpus * n.worth for r in state.running for n in problem.nodes if (r.node, r.tenant) == (n.id, run.tenant)
                )
                assert left >= dict(problem.dues)[run.tenant] - 1e-9
        limit = next((limit.units for limit in problem.limits if limit.tenant == task.tenant), NEVER)
        assert held_units(state).get(task.tenant, 0) <= limit


@settings(max_examples=100, deadline=None)
@given(preempting())
def test_without_the_setting_a_plan_is_the_same_whatever_preemption_would_cost(problem: SchedulingProblem) -> None:
    off = replace(problem, leave=None)
    plain = replace(
        off,
        dues=(),
        running=tuple(replace(run, preemptible=None) for run in problem.running),
        queued=tuple(replace(task, preempts=0, ran=0) for task in problem.queued),
    )
    assert solve(off, QUICK) == solve(plain, QUICK)
    assert shorter_first(off, solve(off, QUICK)) == ()
    assert not {"leave", "dues"} & problem_to_json(plain).keys()
    assert all("preemptible" not in run for run in problem_to_json(plain)["running"])


@settings(max_examples=50, deadline=None)
@given(preempting())
def test_a_stored_problem_is_read_as_it_was(problem: SchedulingProblem) -> None:
    assert problem_from_json(problem_to_json(problem)) == problem


def test_the_problem_of_an_older_version_is_read() -> None:
    said = {
        "nodes": [{"id": "n", "gpus": 2}],
        "running": [{"id": "r", "node": "n", "gpus": 1, "remaining": 9, "tenant": "ada"}],
        "queued": [{"id": "q", "gpus": 1, "weight": 5, "seconds": 7, "tenant": "ada"}],
    }
    found = problem_from_json(said)
    assert (found.leave, found.dues, found.running[0].preemptible, found.queued[0].preempts) == (None, (), None, 0)
