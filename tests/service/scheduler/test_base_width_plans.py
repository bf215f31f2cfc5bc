"""A task whose base is too large for the GPUs that it asks for: what is placed, told, estimated and asked of an autoscaler."""

import pytest
from sqlalchemy import select, update

from contract.compatibility.capabilities import SHARDED_BASES, understood
from service.scheduler.estimate.node_shapes import Shape
from service.scheduler.models import Plan
from service.tasks.models import TaskEvent
from service.tenants.models import Tenant
from tests.service.fleet.scripted import devices
from tests.service.scheduler.test_widths import EIGHT, LONG, widths

GIB = 2**30
H200, L4 = Shape("NVIDIA H200", 8, 139 * GIB, True), Shape("NVIDIA L4", 8, 22 * GIB, True)
ABLE = {"capabilities": sorted(understood())}
OLDER = {"capabilities": sorted(understood() - {SHARDED_BASES})}


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
