"""How wide a task runs on real rows: from the spec to what a node is given, and back again when another is owed the GPUs."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from contract.states import TaskStatus
from service.fleet.models import Placement
from service.scheduler.core.problem_json import problem_from_json
from service.scheduler.models import Plan, ThroughputProfile
from service.tasks.models import Task
from service.tenants.models import Tenant
from tests.service.fleet.scripted import completed, moved, throughput

LONG = {"training": {"max_seq_len": 64, "epochs": 100}, "early_exit": {"policy": "none"}}  # than an executor takes to load


def widths(node) -> dict[str, int]:
    """How many devices each task of the node has."""
    return {placement.task_id: len(placement.device_indexes) for placement in node.desired().placements}


def begin(node, task_id):
    placement = node.take(task_id)
    node.leases(placement.pulse())
    jobs = [job.index for job in placement.given.jobs]
    placement.report(placement.attached(steps=1000, warmup=10), *(moved(job, "warmup") for job in jobs))
    return placement


def leave(placement):
    """Checkpoint where it stands, and go."""
    placement.report(placement.checkpoint({job.index: 0 for job in placement.given.jobs}), {"kind": "detached"})


def test_alone_it_has_both_devices_and_everybody_says_so(tenant, new_node, plan, database):
    node = new_node(slots=2)
    made = tenant.task(max_gpus=2, **LONG)
    plan()
    assert widths(node) == {made["id"]: 2}
    told = tenant.get(f"/v1/tasks/{made['id']}").json()
    assert (told["gpus"], told["spec"]["max_gpus"], told["placement"]["gpus"]) == (1, 2, 2)
    (seen,) = tenant.get("/v1/schedule").json()["nodes"]
    assert (seen["free"], seen["running"][0]["gpus"]) == (0, 2)
    (placed,) = tenant.get(f"/v1/tasks/{made['id']}/plan-history").json()["data"]
    assert placed["said"]["device_indexes"] == [0, 1]
    with database.begin() as session:
        kept = session.scalars(select(Plan)).one()
        assert kept.decision["starts"][0]["gpus"] == 2
        assert [width["gpus"] for width in kept.problem["queued"][0]["wider"]] == [2]
        row = session.scalars(select(Placement)).one()
        assert row.expected_seconds < 0.7 * kept.problem["queued"][0]["seconds"]
        assert row.expected_low < row.expected_end < row.expected_high


def test_it_is_narrow_where_the_other_device_is_needed(tenant, new_node, plan):
    node = new_node(slots=2)
    first, second = tenant.task(max_gpus=2, **LONG)["id"], tenant.task(**LONG)["id"]
    plan()
    assert widths(node) == {first: 1, second: 1}


EIGHT = {"search_space": {"learning_rate": [1e-4 * at for at in range(1, 9)], "batch_size": [4]}}
ONE = {"search_space": {"learning_rate": [1e-4], "batch_size": [4]}}


def test_it_is_no_wider_than_its_jobs_its_quota_its_node_or_its_gain(tenant, new_tenant, admin, new_node, plan, database):
    limited = new_tenant()
    with database.begin() as session:
        session.execute(update(Tenant).where(Tenant.id == limited.tenant_id).values(running_gpus_quota=3))
    for caller, spec, width in (
        (tenant, LONG | ONE | {"max_gpus": 8}, 1),
        (tenant, LONG | {"max_gpus": 8}, 2),
        (tenant, LONG | EIGHT | {"max_gpus": 64}, 4),
        (limited, LONG | EIGHT | {"max_gpus": 8}, 2),
        (tenant, LONG | EIGHT | {"gpus": 3, "max_gpus": 6}, 3),
        (tenant, ONE | {"max_gpus": 2}, 1),
        (tenant, {"max_gpus": 2, "training": {"max_steps": 1}}, 1),  # it is over once it has loaded
    ):
        node, id = new_node(slots=4), caller.task(**spec)["id"]
        plan()
        assert widths(node) == {id: width}, spec
        admin.post(f"/v1/admin/nodes/{node.id}/drain")


def test_each_node_is_offered_what_it_has_room_for(tenant, new_node, plan, database):
    nodes = {new_node(slots=slots).id: slots for slots in (4, 1, 2)}
    new_node(slots=8, memory=2**20)  # too small for the base
    made = tenant.task(max_gpus=8, **LONG | EIGHT)["id"]
    plan()
    with database.begin() as session:
        problem = problem_from_json(session.scalars(select(Plan)).one().problem)
        assert session.scalars(select(Placement)).one().device_indexes == [0, 1, 2, 3]
    (queued,) = problem.queued
    assert queued.id == made
    for width in queued.widths:
        fitting = {node.id for node, seconds in zip(problem.nodes, width.seconds, strict=True) if seconds is not None}
        assert fitting == {node for node, slots in nodes.items() if slots >= width.gpus}
    assert [width.gpus for width in queued.widths] == [1, 2, 4]


def test_who_comes_back_may_be_wider_or_narrower(tenant, new_node, plan):
    node = new_node(slots=2)
    moldable = tenant.task(max_gpus=2, **LONG)["id"]
    plan()
    placement = begin(node, moldable)
    assert widths(node) == {moldable: 2}
    tenant.post(f"/v1/tasks/{moldable}/pause")
    leave(placement)
    other = tenant.task(**LONG)["id"]
    plan()
    tenant.post(f"/v1/tasks/{moldable}/resume")
    plan()
    assert widths(node) == {moldable: 1, other: 1}
    tenant.post(f"/v1/tasks/{other}/cancel")
    placement = begin(node, moldable)
    tenant.post(f"/v1/tasks/{moldable}/pause")
    leave(placement)
    tenant.post(f"/v1/tasks/{moldable}/resume")
    plan()
    assert widths(node) == {moldable: 2}


def test_it_gives_back_what_it_does_not_need_to_a_tenant_that_is_owed_it(new_tenant, new_node, plan, again, database):
    node, borrower, owner = new_node(slots=2), new_tenant(), new_tenant()
    wide = borrower.task(max_gpus=2, **LONG)["id"]
    plan()
    placement = begin(node, wide)
    preemptor = owner.task(**LONG)["id"]
    plan()
    assert not any(placement.leave for placement in node.desired().placements), "not before the bound"
    with database.begin() as session:
        past = func.clock_timestamp() - timedelta(seconds=10_000)
        session.execute(update(Task).where(Task.id == preemptor).values(queued_at=past))
    again()
    assert [placement.leave for placement in node.desired().placements] == [True]
    leave(placement)
    plan()
    assert widths(node) == {wide: 1, preemptor: 1}
    said = borrower.get(f"/v1/tasks/{wide}").json()
    assert (said["status"], said["requeue_reason"]) == (TaskStatus.RUNNING, "preempted")
    assert "your tenant held 2 CPU slots of the 1 it is owed" in said["requeue_detail"]


def test_its_tenant_s_share_counts_the_gpus_that_it_holds(new_tenant, new_node, plan, database):
    """Of two that have waited equally long, the one whose tenant holds two devices goes second."""
    node, wide, narrow = new_node(slots=3), new_tenant(), new_tenant()
    held = [wide.task(max_gpus=2, **LONG)["id"]]
    plan()
    held.append(narrow.task(**LONG)["id"])
    plan()
    assert list(widths(node).values()) == [2, 1]
    more = [caller.task(**LONG)["id"] for caller in (wide, narrow)]
    plan()
    with database.begin() as session:
        session.execute(update(Task).where(Task.id.in_(more)).values(queued_at=func.now()))
    begin(node, held[1]).report(completed(0, loss=None, best_step=None), completed(1, loss=None, best_step=None))
    plan()
    assert more[1] in widths(node)


def test_where_two_devices_hold_each_other_up_it_is_no_longer_widened(tenant, new_node, plan, again, database):
    node = new_node(slots=2)

    def run(width, **speed):
        """A task that may be wider, and did so: it says how fast it was, and ends."""
        id = tenant.task(max_gpus=2, **LONG)["id"]
        plan()
        assert widths(node) == {id: width}
        placement = begin(node, id)
        placement.report(throughput(steps=10, **speed))
        placement.report(completed(0, loss=None, best_step=None), completed(1, loss=None, best_step=None))

    run(2, tokens=2000, rows=600, seconds=19.0, device_steps=20, device_seconds=36.0)  # half a step's tokens each
    alone = tenant.task(**LONG)["id"]
    plan()
    placement = begin(node, alone)
    placement.report(throughput(steps=10, tokens=2000, rows=600, seconds=19.0))  # all of them in as long
    placement.report(completed(0, loss=None, best_step=None), completed(1, loss=None, best_step=None))
    run(1, tokens=2000, rows=600, seconds=19.0)
    with database.begin() as session:
        seen = [(row.width, row.tokens) for row in session.scalars(select(ThroughputProfile).order_by(ThroughputProfile.width))]
    assert seen == [(1, 256), (2, 128)]


# ---- estimates -------------------------------------------------------------------------------------------------------


def test_an_estimate_tells_what_each_width_takes_and_at_which_it_would_start(tenant, new_node, plan):
    node = new_node(slots=4)
    spec = tenant.spec(tenant.file(), max_gpus=4, **LONG)

    def estimate(**changes):
        answer = tenant.post("/v1/tasks/estimate", json=spec | changes)
        assert answer.status_code == 200, answer.text
        return answer.json()

    said = estimate(**EIGHT)
    assert [width["gpus"] for width in said["widths"]] == [1, 2, 4]
    expected = [width["seconds"]["expected"] for width in said["widths"]]
    assert expected == sorted(expected, reverse=True)
    assert expected[2] < expected[0] / 2
    for width in said["widths"]:
        assert width["gpu_seconds"]["expected"] == pytest.approx(width["gpus"] * width["seconds"]["expected"])
    assert (said["gpus"], said["gpu_seconds"]) == (4, said["widths"][2]["gpu_seconds"])
    assert said["problems"] == []
    few = estimate()
    assert few["gpus"] == 2
    assert [(p["field"], p["code"], p["message"]) for p in few["problems"]] == [
        ("max_gpus", "gpus_idle", "is 4, but the search space makes jobs for 2 and none is split: at most 2 are used")
    ]
    (over,) = estimate(**EIGHT, deadline="2020-01-01T00:00:00Z")["problems"]
    assert (over["field"], over["code"]) == ("deadline", "deadline_over")
    soon = datetime.now(UTC) + timedelta(seconds=said["widths"][2]["seconds"]["expected"] / 2)
    (missed,) = estimate(**EIGHT, deadline=soon.isoformat())["problems"]
    assert (missed["field"], missed["code"]) == ("deadline", "deadline_missed")
    assert estimate(**EIGHT, deadline="2190-01-01T00:00:00Z")["problems"] == []
    held = tenant.task(gpus=2, **LONG)["id"]
    plan()
    assert widths(node) == {held: 2}
    assert estimate(**EIGHT)["gpus"] == 2
    for path in ("/v1/tasks/estimate", "/v1/tasks"):
        refused = tenant.post(path, json=spec | {"max_gpus": 3})
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["field"] == "max_gpus"
        assert "is 3, must be 'gpus' doubled any number of times: 1, 2, 4" in error["message"]
