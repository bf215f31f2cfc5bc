"""What tasks that share GPUs count: in quotas, in the use of their tenants, and in an estimate."""

import pytest
from sqlalchemy import select, update

from service.fleet.models import Node, Placement
from service.scheduler.state import snapshot
from tests.service.fleet.scripted import devices, throughput
from tests.service.scheduler.planned import start, validated
from tests.service.scheduler.sharing import GPU, LONG, SHARES, SHORT, shared, task_of


def test_an_estimate_counts_a_join_as_the_plan_does(tenant, new_tenant, gpu, plan, admin, dependencies):
    """The joiner holds half a GPU of its tenant's quota, and is named with it."""
    first = tenant.task(**LONG)["id"]
    plan()
    start(gpu, first)
    other = new_tenant()
    admin.request("PATCH", f"/v1/admin/tenants/{other.tenant_id}", json={"quotas": {"running_gpus": 1}})
    joiner, alone = validated(dependencies, other, **SHORT), LONG | {"isolation": "dedicated"}
    said = other.post("/v1/tasks/estimate", json=other.spec(other.file(), **alone)).json()
    waits = validated(dependencies, other, **alone)
    plan()
    waiting = task_of(other, waits)["waiting"]
    assert waiting["code"] == "waiting_for_quota"
    assert f"0.5 of them held by {joiner};" in waiting["sentence"]
    assert said["waiting"] == waiting["sentence"]


def test_a_shared_gpu_counts_once_in_quotas_and_usage(tenant, new_tenant, new_node, plan, admin):
    node = new_node(said=SHARES | {"devices": devices(2, kind="NVIDIA H200")})
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": 1}})
    first = tenant.task(**LONG)["id"]
    plan()
    start(node, first)
    second = tenant.task(**SHORT)["id"]
    plan()
    assert [p.task_id for p in node.desired().placements] == [first, second]
    assert node.desired().placements[0].device_indexes == node.desired().placements[1].device_indexes
    assert tenant.get("/v1/quotas").json()["running_gpus"]["used"] == 1
    third = tenant.task(**LONG, isolation="dedicated")["id"]
    plan()
    assert task_of(tenant, third)["waiting"]["code"] == "waiting_for_quota"


def test_a_shared_gpu_still_counts_for_all_who_share_it_once_nobody_may_join(tenant, new_tenant, new_node, gpu, plan, admin):
    """Half of the drained node's GPU, beside which a quota of one leaves no room for another."""
    other = new_tenant()
    shared(tenant, other, gpu, plan)
    admin.request("PATCH", f"/v1/admin/tenants/{other.tenant_id}", json={"quotas": {"running_gpus": 1}})
    admin.request("POST", f"/v1/admin/nodes/{gpu.id}/drain")
    new_node(said=SHARES | GPU)
    third = other.task(**LONG, isolation="dedicated")["id"]
    plan()
    assert task_of(other, third)["waiting"]["code"] == "waiting_for_quota"
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": 1}})
    fourth = tenant.task(**LONG, isolation="dedicated")["id"]
    plan()
    assert task_of(tenant, fourth)["waiting"]["code"] == "waiting_for_quota"
    admin.request("PATCH", f"/v1/admin/tenants/{other.tenant_id}", json={"quotas": {"running_gpus": 2}})
    plan()
    assert task_of(other, third)["status"] == "running"


def test_a_gpu_that_tenants_share_counts_in_parts_as_the_plan_counts_it(tenant, new_tenant, new_node, plan, admin):
    """A quota of one holds two halves."""
    other = new_tenant()
    admin.request("PATCH", f"/v1/admin/tenants/{other.tenant_id}", json={"quotas": {"running_gpus": 1}})
    for name in ("one", "two"):
        node = new_node(name=name, said=SHARES | GPU)
        first = tenant.task(**LONG, isolation="shared")["id"]
        plan()
        start(node, first)
    joined = [other.task(**SHORT)["id"] for _ in range(2)]
    plan()
    assert [task_of(other, id)["status"] for id in joined] == ["running"] * 2
    assert other.get("/v1/quotas").json()["running_gpus"] == {"limit": 1, "used": 1}
    assert tenant.get("/v1/quotas").json()["running_gpus"]["used"] == 1


def test_gpus_of_a_lost_node_count_no_more_and_the_others_by_the_fleet_without_it(tenant, new_node, plan, database):
    """As a plan counts them while their placements are still being released: an L4 is the fastest type there is now."""
    fast = new_node(name="fast", said=GPU)
    first = tenant.task(**LONG)["id"]
    plan()
    start(fast, first)
    slow = new_node(name="slow", said={"devices": devices(3, kind="NVIDIA L4")})
    for _ in range(3):
        tenant.task(**LONG)
    plan()
    assert len(slow.desired().placements) == 3
    assert tenant.get("/v1/quotas").json()["running_gpus"]["used"] == 2, "one, and three times a ninth"
    with database.begin() as session:
        session.execute(update(Node).where(Node.id == fast.id).values(status="lost"))
    assert tenant.get("/v1/quotas").json()["running_gpus"]["used"] == 3


def test_fair_shares_count_a_wide_executor_in_the_parts_that_quotas_do(
    tenant, new_tenant, new_node, plan, database, dependencies
):
    """Two of three parts are those of the task that runs on both GPUs, though it would run on one of them, too."""
    node, other = new_node(said=SHARES | {"devices": devices(2, kind="NVIDIA H200")}), new_tenant()
    wide = tenant.task(**LONG, max_gpus=2)["id"]
    plan()
    with database.begin() as session:  # so small a base gains nothing by a second GPU
        session.execute(update(Placement).values(device_indexes=[0, 1]))
    start(node, wide)
    short = other.task(**SHORT)["id"]
    plan()
    assert start(node, short).given.device_indexes == [0, 1]
    with dependencies.db.begin() as session:
        seen = snapshot.read(session, dependencies)
    (run,) = seen.problem.running
    held = {share.tenant: share.held["NVIDIA H200"] for share in seen.shares}
    assert held == {caller.tenant_id: pytest.approx(2 * run.part_of(caller.tenant_id)) for caller in (tenant, other)}
    assert held[tenant.tenant_id] == pytest.approx(4 / 3)


def test_gpu_seconds_of_shared_steps_add_up_to_the_executors(tenant, new_tenant, gpu, plan, database):
    other = new_tenant()
    first, second = shared(tenant, other, gpu, plan)
    first.report(throughput(tokens=3000, seconds=2.0, share_seconds=1.5))
    second.report(throughput(tokens=1000, seconds=2.0, share_seconds=0.5))
    used = [caller.get("/v1/usage").json()["total"]["gpu_seconds"] for caller in (tenant, other)]
    assert used == [1.5, 0.5]
    assert sum(used) == 2.0
    with database.begin() as session:
        placed = session.scalars(select(Placement)).all()
    assert {one.train_seconds for one in placed} == {2.0}


def test_what_runs_on_an_unreadable_node_counts(tenant, admin, new_node, plan, again, database):
    bad = new_node(slots=2)
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": 2}})
    first = tenant.task()["id"]
    plan()
    start(bad, first)
    with database.begin() as session:
        session.execute(update(Node.__table__).where(Node.__table__.c.id == bad.id).values(devices=3))
    good, second, third = new_node(slots=2), tenant.task()["id"], tenant.task()["id"]
    again()
    assert [placement.task_id for placement in good.desired().placements] == [second]
    waiting = task_of(tenant, third)["waiting"]
    assert waiting["code"] == "waiting_for_quota"
    assert (
        "quota is 2 CPU slots at once, 1 of them held on nodes whose rows cannot be read and 1 held by" in waiting["sentence"]
    )
    assert tenant.get("/v1/quotas").json()["running_gpus"]["used"] == 2
