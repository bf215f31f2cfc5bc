"""A base too large for the GPUs that its task asks for: each type gives the fewest that hold it, within max_gpus."""

import json
from dataclasses import replace

import pytest

from service.scheduler.core.joins.joining import settled
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Start, Width
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.solve import MalformedProblem, solve
from service.scheduler.estimate.base_fit import BaseFit
from service.scheduler.estimate.node_shapes import Shape
from service.scheduler.explain.reason_codes import Code, reasons
from service.scheduler.explain.width_sentences import FitWords, fit_words
from tests.service.scheduler.join_checks import join_violations
from tests.service.scheduler.test_joins import running, sharing
from tests.service.scheduler.test_width_rules import QUICK

GIB = 2**30
H200, L4 = Shape("NVIDIA H200", 8, 139 * GIB, True), Shape("NVIDIA L4", 8, 22 * GIB, True)
OLD_L4, ONE_L4 = L4._replace(shards=False), L4._replace(gpus=1)
FEWER = "Its base does not fit on fewer."
NODES = PlanNode("large", 1), PlanNode("small", 4)


# ---- the memory model ------------------------------------------------------------------------------------------------


def test_the_narrowest_width_follows_from_each_type_of_gpu():
    fit = BaseFit(30 * GIB, 1)
    assert [fit.narrowest(shape) for shape in (H200, L4, OLD_L4, ONE_L4)] == [1, 2, None, None]
    assert [BaseFit(size * GIB, 1).narrowest(L4) for size in (19, 20, 33, 34, 66, 67, 133)] == [1, 2, 2, 4, 4, 8, None]
    assert [BaseFit(size * GIB, 1).narrowest(OLD_L4) for size in (19, 20)] == [1, None], "it shares no base"
    assert BaseFit(133 * GIB, 1).needed(L4) == 16
    assert [fit._replace(gpus=gpus).narrowest(L4) for gpus in (2, 3, 8)] == [2, 3, 8], "at least what it asks for"
    assert BaseFit(60 * GIB, 3).narrowest(L4) == 6, "its own doublings"


def test_max_gpus_is_a_hard_limit_and_texts_need_copies():
    assert [BaseFit(60 * GIB, 1, most).narrowest(L4) for most in (None, 1, 2, 4, 8)] == [4, None, None, 4, 4]
    assert BaseFit(60 * GIB, 1, 1).needed(L4) == 4
    assert BaseFit(60 * GIB, 1, copies=True).narrowest(L4) is None
    assert BaseFit(60 * GIB, 1, copies=True).narrowest(H200) == 1


@pytest.mark.parametrize(
    ("fit", "shapes", "said"),
    [
        (BaseFit(19 * GIB, 1), [H200, L4], FitWords()),
        (BaseFit(20 * GIB, 1), [H200, L4], FitWords("1 x NVIDIA H200 or 2 x NVIDIA L4", FEWER, 1)),
        (BaseFit(30 * GIB, 1), [L4], FitWords("2 x NVIDIA L4", FEWER)),
        (BaseFit(30 * GIB, 1), [L4, H200], FitWords("1 x NVIDIA H200 or 2 x NVIDIA L4", FEWER, 1)),
        (
            BaseFit(60 * GIB, 2),
            [L4, H200],
            FitWords("2 x NVIDIA H200 or 4 x NVIDIA L4", "On some types its base does not fit on the 2 that it asks for.", 2),
        ),
        (BaseFit(60 * GIB, 2), [L4], FitWords("4 x NVIDIA L4", "Its base does not fit on the 2 that it asks for.")),
        (BaseFit(30 * GIB, 1), [OLD_L4], FitWords()),
        (BaseFit(30 * GIB, 1, copies=True), [L4], FitWords()),
        (
            BaseFit(30 * GIB, 1, 1),
            [L4],
            FitWords(
                unfit="Its base needs 2 x NVIDIA L4 of one node, which share it layer by layer, and max_gpus allows 1; raise "
                "max_gpus to 2, or leave it out, or take a smaller base or precision nf4, or wait until a roomier node joins."
            ),
        ),
        (
            BaseFit(30 * GIB, 1),
            [ONE_L4],
            FitWords(
                unfit="Its base needs 2 x NVIDIA L4 of one node, which share it layer by layer, but the largest of these nodes "
                "has 1; take a smaller base or precision nf4, or wait until a roomier node joins.",
                wanted=2,
            ),
        ),
        (
            BaseFit(60 * GIB, 3),
            [L4._replace(gpus=4)],
            FitWords(
                unfit="Its base fits on no doubling of gpus 3; take gpus 4, or take a smaller base or precision nf4, or wait "
                "until a roomier node joins."
            ),
        ),
    ],
)
def test_what_its_owner_is_told(fit, shapes, said):
    assert fit_words(fit, shapes) == said


# ---- plans -----------------------------------------------------------------------------------------------------------


def task(name: str, *, seconds=(50, 100), needs=(1, 2), **more) -> Queued:
    """One wide on the large GPU, two wide on the small ones."""
    return Queued(name, min(needs), 1, seconds, needs=needs, **more)


def planned(problem: SchedulingProblem) -> dict[str, Start]:
    assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem
    return {start.task: start for start in solve(problem, QUICK).starts}


def test_each_node_gives_as_many_gpus_as_its_type_takes():
    found = planned(SchedulingProblem(NODES, (), tuple(task(name) for name in "abc")))
    assert sorted((start.node, start.gpus, start.start, start.end) for start in found.values()) == [
        ("large", 1, 0, 50), ("small", 2, 0, 100), ("small", 2, 0, 100),
    ]  # fmt: skip


def test_too_few_free_gpus_of_the_small_type_are_no_room():
    busy = (RunningExecutor("r", "large", 1, 500), RunningExecutor("s", "small", 3, 40))
    (start,) = planned(SchedulingProblem(NODES, busy, (task("a"),))).values()
    assert (start.node, start.gpus, start.start) == ("small", 2, 40)
    problem = SchedulingProblem(NODES, busy, (task("a"),))
    (reason,) = reasons(problem, (start,))
    assert (reason.code, reason.numbers["asked"], reason.numbers["free"]) == (Code.WAITING_FOR_CAPACITY, 2, 1)


def test_a_quota_counts_the_gpus_of_each_type():
    problem = SchedulingProblem(NODES, (), (task("a", tenant="ada"), task("b", tenant="ada")), (Limit("ada", 1),))
    found = planned(problem)
    assert {start.node for start in found.values()} == {"large"}
    small = SchedulingProblem(NODES[1:], (), (Queued("a", 2, 1, (100,), tenant="ada"),), (Limit("ada", 1),))
    (reason,) = reasons(small, solve(small, QUICK).starts)
    assert (reason.code, reason.numbers["asked"], reason.start) == (Code.WAITING_FOR_QUOTA, 2, None)


def test_more_than_the_base_needs_is_taken_only_where_the_spec_offers_it():
    wide = task("a", wider=(Width(2, (30, None)), Width(4, (None, 60))))
    (start,) = planned(SchedulingProblem(NODES[1:], (), (Queued("a", 2, 1, (100,)),))).values()
    assert start.gpus == 2
    busy = (RunningExecutor("r", "large", 1, 500),)
    (start,) = planned(SchedulingProblem((PlanNode("large", 2), NODES[1]), busy, (wide,))).values()
    assert (start.node, start.gpus, start.end) == ("large", 1, 50)
    (start,) = planned(SchedulingProblem((PlanNode("large", 1), NODES[1]), busy, (wide_of_one(wide),))).values()
    assert (start.node, start.gpus, start.end) == ("small", 4, 60)


def wide_of_one(one: Queued) -> Queued:
    return Queued(one.id, 1, 1, one.seconds, needs=one.needs, wider=(Width(4, (None, 60)),))


def test_a_task_joins_an_executor_that_is_as_wide_as_its_base_needs_there():
    nodes = PlanNode("large", 1), PlanNode("small", 2)
    joiner = replace(task("t", tenant="mine"), weight=100, sharing=(sharing(),) * 2)
    busy = RunningExecutor("l", "large", 1, 2000, "theirs")

    def joined(gpus: int) -> RunningExecutor | None:
        others = [RunningExecutor("o", "small", 1, 2000, "theirs")] if gpus == 1 else []
        problem = SchedulingProblem(nodes, (busy, running("r", node="small", gpus=gpus), *others), (joiner,))
        decision = solve(problem, QUICK)
        assert list(join_violations(problem, decision)) == []
        return next((run for run in settled(problem, decision).running if len(run.members) > 1), None)

    found = joined(2)
    assert found is not None
    assert [(member.id, member.gpus) for member in found.members] == [("r", 2), ("t", 2)]
    assert joined(1) is None, "its base does not fit on one of these"


def test_malformed_needs_are_refused():
    for wrong, why in (
        (task("a", needs=(1, 2, 4)), "needs is"),
        (Queued("a", 2, 1, (50, 100), needs=(1, 2)), "needs is"),
        (task("a", needs=(1, 8)), "fits a node of 4 GPUs, but it takes 8"),
        (task("a", wider=(Width(2, (None, 90)),)), "of which it needs as many or more"),
    ):
        with pytest.raises(MalformedProblem, match=why):
            solve(SchedulingProblem(NODES, (), (wrong,)))
