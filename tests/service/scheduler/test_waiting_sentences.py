"""Why a task waits, as its owner reads it: sentences with names and numbers, own tasks alone by name; when it is told anew."""

from datetime import UTC, datetime, timedelta

import pytest

from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Start
from service.scheduler.core.solve import solve
from service.scheduler.estimate.prediction_intervals import PredictedInterval, Spread, intervals
from service.scheduler.explain.reason_codes import Code, Reason, reasons
from service.scheduler.explain.waiting_sentences import Offer, Scene, explain, task_words
from service.scheduler.explain.width_sentences import FitWords
from service.tasks.plan_status.waiting_changes import differs, shows

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GIB = 2**30


def told(problem, needs=None, standing=None, device_type="H100", names=None):
    """What the owners of the waiting tasks read."""
    starts = solve(problem).starts
    offers = {node.id: Offer(f"name-{node.id}", node.gpus, 8 * GIB, "", device_type) for node in problem.nodes}
    owners = {task.id: task.tenant for task in (*problem.queued, *problem.running)}
    running = {run.id: run.node for run in problem.running} | {start.task: start.node for start in starts if start.start == 0}
    scene = Scene(offers, owners, needs or dict.fromkeys(owners, GIB), running, names=names or {})
    return {reason.task: explain(reason, scene, NOW) for reason in reasons(problem, starts, standing)}


def test_capacity_says_how_many_when_and_who_is_there():
    running = (RunningExecutor("r", "n", 1, 100, "mine"), RunningExecutor("s", "n", 1, 100, "theirs"))
    problem = SchedulingProblem(
        (PlanNode("n", 2),), running, (Queued("a", 1, 100, (50,), tenant="mine"), Queued("b", 2, 100, (60,)))
    )
    found = told(problem)
    assert [(found[task]["code"], found[task]["place"]) for task in "ab"] == [("waiting_for_capacity", at) for at in (1, 2)]
    assert found["a"]["sentence"] == (
        "It needs 1 GPU of one node; none of the 2 that it could run on is free. It is planned for name-n, held by r and "
        "another tenant's task."
    )
    assert "1 task is planned before it" in found["b"]["sentence"]
    assert found["a"]["expected_start"] == "2026-01-01T00:01:40+00:00"
    assert found["a"]["expected_end"] == "2026-01-01T00:02:30+00:00"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"r": task_words("the long one", "r"), "s": task_words(None, "s")}, '"the long one", s, t and 1 more of yours'),
        (dict.fromkeys("rst", '"demo"'), '3 tasks named "demo" and u'),
        (dict.fromkeys("rstu", '"demo"') | {"a": '"a"'}, '4 tasks named "demo"'),
    ],
)
def test_own_tasks_are_called_by_their_names(names, said):
    busy = tuple(RunningExecutor(id, "n", 1, 100) for id in "rstu")
    found = told(SchedulingProblem((PlanNode("n", 4),), busy, (Queued("a", 1, 100, (50,)),)), names=names)
    assert found["a"]["sentence"].endswith(f"held by {said}.")


def test_a_fleet_without_gpus_has_cpu_slots():
    queued = (Queued("a", 1, 100, (50,)), Queued("b", 2, 100, (60,)))
    busy = (RunningExecutor("r", "n", 1, 100), RunningExecutor("s", "n", 1, 100))
    found = told(SchedulingProblem((PlanNode("n", 2),), busy, queued), device_type="cpu")
    assert found["a"]["sentence"].startswith("It needs 1 CPU slot of one node;")
    assert found["b"]["sentence"].startswith("It needs 2 CPU slots of one node;")


@pytest.mark.parametrize(("owner", "name"), [("mine", "wide"), ("theirs", "another tenant's task")])
def test_a_hole_kept_for_a_heavier_task_is_named_to_its_owner_alone(owner, name):
    wide, narrow = Queued("wide", 2, 10_000, (100,), tenant=owner), Queued("narrow", 1, 10, (80,), tenant="mine")
    problem = SchedulingProblem((PlanNode("n", 2),), (RunningExecutor("r", "n", 1, 50),), (wide, narrow))
    found = told(problem)
    assert (found["wide"]["code"], found["narrow"]["code"]) == ("waiting_for_capacity", "larger_task_reserved")
    assert found["narrow"]["sentence"].startswith("1 GPU stands free for its 1, but they are kept for")
    assert f"they are kept for {name}, which takes 2 GPUs as soon as they" in found["narrow"]["sentence"]


def test_a_quota_is_told_with_what_holds_it():
    running = (RunningExecutor("r", "n", 2, 100, "mine"), RunningExecutor("other", "n", 1, 100, "theirs"))
    queued = (Queued("a", 1, 100, (50,), tenant="mine"), Queued("b", 4, 100, (50,), tenant="mine"))
    found = told(SchedulingProblem((PlanNode("n", 8),), running, queued, limits=(Limit("mine", 2),)))
    assert {said["code"] for said in found.values()} == {"waiting_for_quota"}
    assert "your quota is 2 GPUs at once, 2 of them held by r;" in found["a"]["sentence"]
    assert "It asks for 4 GPUs, but your quota is 2 at once" in found["b"]["sentence"]
    assert found["b"]["expected_start"] is None


def test_a_quota_is_told_with_what_nodes_that_cannot_be_read_hold_of_it():
    queued = tuple(Queued(f"t{gpus}", gpus, 100, (50,), tenant="mine") for gpus in (1, 2, 5))
    running = (RunningExecutor("r", "n", 1, 100, "mine"),)
    found = told(SchedulingProblem((PlanNode("n", 8),), running, queued, limits=(Limit("mine", 1, beside=3),)))
    away = "at once, 3 of them held on nodes whose rows cannot be read"
    assert found["t1"]["sentence"].startswith(
        f"It needs 1 GPU, and your quota is 4 GPUs {away} and 1 held by r; it starts once"
    )
    assert found["t2"]["sentence"] == (
        f"It needs 2 GPUs of one node, but your quota is 4 {away}; it starts once enough of them are given back."
    )
    assert found["t5"]["sentence"] == (
        "It asks for 5 GPUs, but your quota is 4 at once; ask for fewer, or have an admin raise the quota."
    )


def test_a_quota_is_told_with_the_task_that_it_is_kept_for():
    nodes, running = (PlanNode("n", 4), PlanNode("o", 2)), (RunningExecutor("r", "n", 1, 50, "theirs"),)
    queued = Queued("wide", 4, 10_000, (100, None), tenant="mine"), Queued("a", 2, 10, (80, 80), tenant="mine")
    found = told(SchedulingProblem(nodes, running, queued, limits=(Limit("mine", 5),)))
    assert found["a"]["sentence"] == (
        "It needs 2 GPUs, and your quota is 5 GPUs at once: wide, which goes first and takes 4 GPUs, would exceed it while "
        "this task still runs."
    )


@pytest.mark.parametrize(("limit", "advice"), [(1, "ask for fewer, take a smaller base"), (2, "take a smaller base")])
def test_fewer_gpus_are_advised_where_a_type_holds_the_base_on_as_many_as_it_asks_for(limit, advice):
    """It asks for two; an L4 takes four."""
    words = FitWords("2 x NVIDIA H200 or 4 x NVIDIA L4", "On some types its base does not fit on the 2 that it asks for.", 2)
    reason = Reason("a", Code.WAITING_FOR_QUOTA, 1, numbers={"asked": 2, "limit": limit, "held": 0, "beside": 0})
    scene = Scene({"n": Offer("n", 8, GIB, "", "NVIDIA L4")}, {"a": ""}, {"a": GIB}, fit=lambda task: words)
    assert explain(reason, scene, NOW)["sentence"] == (
        f"It needs 2 x NVIDIA H200 or 4 x NVIDIA L4 of one node, but your quota is {limit} at once; {advice} or precision nf4, "
        "or have an admin raise the quota. On some types its base does not fit on the 2 that it asks for."
    )


def test_one_free_gpu_is_free():
    problem = SchedulingProblem((PlanNode("n", 2),), (RunningExecutor("r", "n", 1, 100),), (Queued("a", 2, 100, (50,)),))
    assert "of the 2 that it could run on, at most 1 is free on one." in told(problem)["a"]["sentence"]


def test_a_drained_node_is_told():
    found = told(SchedulingProblem((PlanNode("n", 2, drained=True),), (), (Queued("a", 1, 100, (50,)),)))
    assert found["a"]["code"] == "node_drained"
    assert "1 node that it fits is being drained or stopped, and takes nothing new" in found["a"]["sentence"]


def test_what_fits_no_node_says_the_numbers_and_has_no_start():
    queued = (Queued("wide", 4, 100, (None,)), Queued("deep", 1, 100, (None,)), Queued("ok", 1, 100, (5,)))
    found = told(SchedulingProblem((PlanNode("n", 2),), (), queued), needs={"wide": GIB, "deep": 40 * GIB, "ok": GIB})
    assert set(found) == {"wide", "deep"}
    assert found["wide"]["code"] == found["deep"]["code"] == "no_node_fits"
    assert "asks for 4 GPUs of one node, but the largest has 2" in found["wide"]["sentence"]
    assert "40.00 GiB" in found["deep"]["sentence"]
    assert "name-n, has 8.00 GiB" in found["deep"]["sentence"]
    assert found["wide"]["expected_start"] is None
    assert {found["wide"]["place"], found["deep"]["place"]} == {1, 2}


def test_an_empty_fleet_is_said_so():
    said = told(SchedulingProblem((), (), (Queued("a", 1, 100, ()),)))["a"]
    assert (said["code"], said["sentence"]) == (
        "no_node_fits",
        "No node is ready; it starts when one joins that has room for it.",
    )


def test_lateness_is_foretold():
    problem = SchedulingProblem(
        (PlanNode("n", 1),), (RunningExecutor("r", "n", 1, 100),), (Queued("a", 1, 100, (50,), deadline=30),)
    )
    (reason,) = reasons(problem, solve(problem).starts)
    scene = Scene({"n": Offer("n", 1, GIB)}, {"a": "", "r": ""}, {"a": 1}, {"r": "n"})
    said = explain(reason, scene, NOW, late=120.0)
    assert said["late_seconds"] == 120.0
    assert said["sentence"].endswith("It is expected to end about 2 min after its deadline.")


def test_who_waits_for_an_uncertain_end_has_an_uncertain_start():
    running = (RunningExecutor("r", "n", 1, 100), RunningExecutor("s", "m", 1, 10))
    starts = (Start("a", "n", 100, 150, 1), Start("b", "n", 150, 160, 1), Start("now", "m", 0, 5, 1))
    found = intervals(running, starts, {"r": Spread(0.5, 2.0), "a": Spread(0.8, 1.2)})
    assert found["r"] == PredictedInterval((0, 0), (50, 200))
    assert found["a"] == PredictedInterval((50, 200), (90, 260))
    assert found["b"] == PredictedInterval((90, 260), (100, 270))
    assert found["s"] == PredictedInterval((0, 0), (10, 10))
    assert found["now"] == PredictedInterval((0, 0), (5, 5))


@pytest.mark.parametrize(
    ("moved", "told"),
    [(0, False), (59, False), (61, True), (-61, True)],
)
def test_a_start_that_moves_a_little_is_not_told_anew(moved, told):
    before = said("waiting_for_capacity", 1) | {"expected_start": at(120), "expected_end": at(190)}
    assert differs(before, before | {"expected_start": at(120 + moved)}, NOW) == told


@pytest.mark.parametrize(("moved", "shown"), [(14, False), (16, True), (-16, True)])
def test_who_asks_sees_smaller_moves(moved, shown):
    before = said("waiting_for_capacity", 1) | {"expected_start": at(120)}
    assert shows(before, before | {"expected_start": at(120 + moved)}, NOW) == shown


@pytest.mark.parametrize(("moved", "told"), [(800, False), (1400, True)])
def test_a_start_far_off_may_move_further(moved, told):
    before = said("waiting_for_capacity", 1) | {"expected_start": at(3600)}
    assert differs(before, before | {"expected_start": at(3600 + moved)}, NOW) == told


def at(seconds):
    return (NOW + timedelta(seconds=seconds)).isoformat()


def said(code, place):
    names = ("node", "expected_start", "expected_end", "late_seconds")
    return {"code": code, "place": place, "sentence": ""} | dict.fromkeys(names)


def test_another_code_or_lateness_is_told_and_another_place_or_node_is_not():
    before = said("waiting_for_capacity", 2)
    assert differs(None, before, NOW)
    assert not shows(before, dict(before), NOW)
    for change in ({"place": 1}, {"node": "n"}):
        assert not differs(before, before | change, NOW)
        assert shows(before, before | change, NOW)
    for change in ({"code": "no_node_fits"}, {"sentence": "another size"}, {"late_seconds": 9.0}):
        assert differs(before, before | change, NOW)


def test_another_number_of_gpus_is_told_unless_the_version_before_told_none():
    before = said("waiting_for_capacity", 2) | {"gpus": 1}
    assert differs(before, before | {"gpus": 2}, NOW)
    assert shows(before, before | {"gpus": 2}, NOW)
    older = said("waiting_for_capacity", 2)
    assert not differs(older, before, NOW)
    assert not shows(older, before, NOW)
    assert not shows(older, dict(older), NOW)
