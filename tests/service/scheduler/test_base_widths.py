"""A base too large for the GPUs that its task asks for: each type gives the fewest that hold it, within max_gpus."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from contract.compatibility.capabilities import SHARDED_BASES, understood
from service.scheduler.core.checks.join_checks import join_violations
from service.scheduler.core.joins.joining import settled
from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Start, Width
from service.scheduler.core.problem_json import problem_from_json, problem_to_json
from service.scheduler.core.solve import MalformedProblem, solve
from service.scheduler.estimate.base_fit import BaseFit
from service.scheduler.estimate.node_shapes import Shape
from service.scheduler.explain.reason_codes import Code, reasons
from service.scheduler.explain.width_sentences import FitWords, fit_words
from service.scheduler.models import Plan
from service.tasks.models import TaskEvent
from service.tenants.models import Tenant
from tests.service.fleet.scripted import devices
from tests.service.scheduler.test_joins import running, sharing
from tests.service.scheduler.test_width_rules import QUICK
from tests.service.scheduler.test_widths import EIGHT, LONG, widths

GIB = 2**30
H200, L4 = Shape("NVIDIA H200", 8, 139 * GIB, True), Shape("NVIDIA L4", 8, 22 * GIB, True)
OLD_L4, ONE_L4 = L4._replace(shards=False), L4._replace(gpus=1)
ABLE = {"capabilities": sorted(understood())}
OLDER = {"capabilities": sorted(understood() - {SHARDED_BASES})}
FEWER = "Its base does not fit on fewer."
NODES = PlanNode("large", 1), PlanNode("small", 4)


# ---- the memory model ------------------------------------------------------------------------------------------------


def test_the_narrowest_width_follows_from_each_type_of_gpu():
    fit = BaseFit(30 * GIB, 1)
    assert [fit.narrowest(shape) for shape in (H200, L4, OLD_L4, ONE_L4)] == [1, 2, None, None]
    assert [BaseFit(size * GIB, 1).narrowest(L4) for size in (22, 23, 33, 34, 66, 67, 133)] == [1, 2, 2, 4, 4, 8, None]
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
        (BaseFit(20 * GIB, 1), [H200, L4], FitWords()),
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


# ---- from a spec to a node ------------------------------------------------------------------------------------------


def waits(tenant, id):
    return tenant.get(f"/v1/tasks/{id}").json()["waiting"]


def test_on_small_gpus_it_is_given_two_and_everybody_is_told(tenant, small, plan, database):
    node, id = small(), tenant.task(gpus=1, **LONG)["id"]
    plan()
    assert widths(node) == {id: 2}
    told = tenant.get(f"/v1/tasks/{id}").json()
    assert (told["gpus"], told["spec"]["gpus"], told["placement"]["gpus"]) == (1, 1, 2)
    (placed,) = tenant.get(f"/v1/tasks/{id}/plan-history").json()["data"]
    assert placed["said"]["sentence"] == "2 x NVIDIA L4: its base does not fit on 1."
    with database.begin() as session:
        events = session.scalars(select(TaskEvent).where(TaskEvent.task_id == id).order_by(TaskEvent.number)).all()
        assert events[-1].data == {"status": "running", "detail": "2 x NVIDIA L4: its base does not fit on 1."}
        assert session.scalars(select(Plan)).one().decision["starts"][0]["gpus"] == 2


def test_each_type_of_gpu_has_its_width(tenant, small, large, plan, database):
    few, many = large(), small(2)
    made = {tenant.task(isolation="dedicated", **LONG)["id"] for _ in range(2)}
    plan()
    assert [*widths(few).values(), *widths(many).values()] == [1, 2]
    assert {*widths(few), *widths(many)} == made
    last = tenant.task(isolation="dedicated", **LONG)["id"]
    plan()
    said = waits(tenant, last)
    assert said["code"] == "waiting_for_capacity"
    assert said["sentence"].startswith("It needs 1 x NVIDIA H200 or 2 x NVIDIA L4 of one node; none of the 3 that it could run")
    assert said["sentence"].endswith(" Its base does not fit on fewer.")
    (waiting,) = tenant.get("/v1/schedule").json()["waiting"]
    assert waiting["gpus"] == said["gpus"] == (1 if said["node"] == few.name else 2)


def test_max_gpus_is_kept_and_the_way_out_is_said(tenant, small, plan, database):
    node, id = small(), tenant.task(max_gpus=1, **LONG)["id"]
    plan()
    assert widths(node) == {}
    said = waits(tenant, id)
    assert (said["code"], said["gpus"]) == ("no_node_fits", 1)
    assert said["sentence"].startswith(
        "Its base needs 2 x NVIDIA L4 of one node, which share it layer by layer, and max_gpus allows 1; raise max_gpus to 2"
    )


def test_a_node_that_cannot_shard_and_a_task_with_texts_wait_as_before(tenant, small, plan):
    older, able = small(said=OLDER), small()
    evaluation = {"metrics": [{"type": "exact_match"}], "max_new_tokens": 4}
    texts, plain = tenant.task(evaluation=evaluation, **LONG)["id"], tenant.task(**LONG)["id"]
    plan()
    assert widths(older) == {}
    assert widths(able) == {plain: 2}
    said = waits(tenant, texts)
    assert said["code"] == "no_node_fits"
    assert "The base model's weights need at least 0.01 GiB of each GPU" in said["sentence"]


def test_a_quota_below_what_the_base_needs_is_said(tenant, small, plan, database):
    small()
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(running_gpus_quota=1))
    spec = tenant.spec(tenant.file(), **LONG)
    words = "It needs 2 x NVIDIA L4 of one node, but your quota is 1 at once; take a smaller base or precision nf4, or have"
    assert tenant.post("/v1/tasks/estimate", json=spec).json()["waiting"].startswith(words)
    id = tenant.task(**LONG)["id"]
    plan()
    said = waits(tenant, id)
    assert (said["code"], said["gpus"]) == ("waiting_for_quota", 2)
    assert said["sentence"].startswith(words)


def test_with_max_gpus_it_starts_at_the_narrowest_that_holds_the_base(tenant, new_node, base, plan, database):
    how = {"slots": 4, "memory": base * 7 // 10, "said": ABLE}
    node = new_node(**how)
    first, second = (tenant.task(max_gpus=4, isolation="dedicated", **LONG | EIGHT)["id"] for _ in range(2))
    plan()
    assert widths(node) == {first: 2, second: 2}, "and is not widened where another needs the GPUs"
    alone, id = new_node(**how), tenant.task(max_gpus=4, isolation="dedicated", **LONG | EIGHT)["id"]
    plan()
    assert widths(alone) == {id: 4}
    with database.begin() as session:
        queued = session.scalars(select(Plan).order_by(Plan.id.desc()).limit(1)).one().problem["queued"]
    assert [(one["gpus"], [wider["gpus"] for wider in one["wider"]]) for one in queued] == [(2, [4])]


def test_an_estimate_tells_the_width_on_each_type(tenant, small, large, plan):
    small()
    spec = tenant.spec(tenant.file(), **LONG)

    def estimate(**changes):
        return tenant.post("/v1/tasks/estimate", json=spec | changes).json()

    said = estimate()
    assert (said["gpus"], said["device_type"], said["waiting"]) == (2, "NVIDIA L4", None)
    assert [width["gpus"] for width in said["widths"]] == [2]
    assert "2 x NVIDIA L4 share the layers that do not fit" in said["sharding"]
    assert [width["gpus"] for width in estimate(max_gpus=4)["widths"]] == [2, 4]
    node = large()
    said = estimate()
    assert (said["gpus"], said["device_type"], said["sharding"]) == (1, "NVIDIA H200", None)
    assert {one["device_type"]: one["gpus"] for one in said["device_types"]} == {"NVIDIA H200": 1, "NVIDIA L4": 2}
    for one in said["device_types"]:
        assert one["gpu_seconds"]["expected"] == pytest.approx(one["gpus"] * one["seconds"]["expected"])
    held = tenant.task(isolation="dedicated", **LONG)["id"]
    plan()
    assert widths(node) == {held: 1}
    said = estimate()
    assert (said["gpus"], said["device_type"], [width["gpus"] for width in said["widths"]]) == (2, "NVIDIA L4", [2])


def test_an_estimate_is_of_the_planned_node_where_one_type_has_two_memories(tenant, small, large, new_node, base, plan):
    """The H200 and the L4 with room for a copy are busy, so it would start on two L4s of the other node."""
    roomy = {"devices": devices(1, kind="NVIDIA L4", memory=3 * base)}
    busy = large(), new_node(said=ABLE | roomy)
    for _ in busy:
        tenant.task(isolation="dedicated", **LONG)
    plan()
    assert [len(widths(node)) for node in busy] == [1, 1]
    small(2)
    answer = tenant.post("/v1/tasks/estimate", json=tenant.spec(tenant.file(), isolation="dedicated", **LONG))
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["gpus"], said["device_type"], said["waiting"]) == (2, "NVIDIA L4", None)
    assert [width["gpus"] for width in said["widths"]] == [2]
    assert "2 x NVIDIA L4 share the layers that do not fit" in said["sharding"]
    assert {one["device_type"]: one["gpus"] for one in said["device_types"]} == {"NVIDIA H200": 1, "NVIDIA L4": 1}


def test_an_autoscaler_is_asked_for_gpus_that_hold_the_task(tenant, admin, small, plan):
    small(1)
    tenant.task(**LONG)
    plan()
    (wanted,) = admin.get("/v1/admin/autoscaling").json()["wanted"]
    assert (wanted["width"], wanted["missing_gpus"], wanted["tasks_that_fit_no_node"]) == (2, 2, 1)
    node = small(2)
    tenant.task(**LONG, isolation="dedicated")
    plan()
    assert len(widths(node)) == 1
    (wanted,) = admin.get("/v1/admin/autoscaling").json()["wanted"]
    assert (wanted["width"], wanted["tasks"], wanted["missing_gpus"], wanted["tasks_that_fit_no_node"]) == (2, 1, 2, 0)
