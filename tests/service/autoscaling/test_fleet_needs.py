"""What the state says of a queue and a fleet: GPUs that are missing, what is free, and which nodes could be taken away."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from service.fleet.models import AnswerSession, Node, Placement
from service.merges.models import RUNNING, MergedModel
from service.tenants.api_keys import Scope


@pytest.fixture
def needs(admin):
    def read():
        answer = admin.get("/v1/admin/autoscaling")
        assert answer.status_code == 200, answer.text
        return answer.json()

    return read


def wanted(state):
    return {one["width"]: (one["tasks"], one["gpus"], one["missing_gpus"]) for one in state["wanted"]}


def idle(state):
    return {node["name"]: node["drained"] for node in state["idle_nodes"]}


def test_only_an_admin_reads_it(new_tenant):
    assert new_tenant(Scope.READ, Scope.WRITE).get("/v1/admin/autoscaling").status_code == 403


def test_an_empty_fleet_misses_all_that_is_queued(nothing_left, tenant, plan, needs):
    assert (needs()["wanted"], needs()["free"], needs()["idle_nodes"]) == ([], [], [])
    first = tenant.task()
    tenant.task(gpus=2)
    plan()
    state = needs()
    assert wanted(state) == {1: (1, 1, 1), 2: (1, 2, 2)}
    assert {one["tasks_that_fit_no_node"] for one in state["wanted"]} == {1}
    assert {one["type"] for one in state["wanted"]} == {"any"}
    since = datetime.fromisoformat(state["wanted"][0]["waiting_since"])
    assert datetime.fromisoformat(first["created_at"]) <= since <= datetime.fromisoformat(state["at"])


def test_what_is_free_is_not_missing_and_what_runs_is_not_idle(new_node, queue, plan, needs):
    node, other = new_node(slots=2), new_node(slots=1)
    queue(gpus=2, isolation="dedicated")
    plan()
    assert node.desired().placements
    state = needs()
    assert (state["wanted"], state["free"]) == ([], [{"type": "cpu", "gpus": 1}])
    assert idle(state) == {other.name: False}
    for _ in range(2):
        queue(isolation="dedicated")
    assert wanted(needs()) == {1: (2, 2, 1)}, "no plan has looked at them yet; one of them fits"
    plan()
    assert wanted(needs()) == {1: (1, 1, 1)}
    assert idle(needs()) == {}


def test_a_task_that_fits_no_node_misses_its_gpus_beside_free_ones(new_node, tenant, plan, needs):
    new_node(slots=1)
    new_node(slots=3)
    tenant.task(gpus=4)
    tenant.task(gpus=4)
    plan()
    (state,) = needs()["wanted"]
    assert (state["width"], state["tasks_that_fit_no_node"], state["missing_gpus"]) == (4, 2, 8)


def test_no_node_is_wanted_for_a_quota_or_for_a_later_start(new_node, tenant, admin, plan, needs):
    new_node(slots=1)
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": 1}})
    for _ in range(2):
        tenant.task(isolation="dedicated")
    admin.task(not_before=(datetime.now(UTC) + timedelta(days=1)).isoformat())
    plan()
    codes = {task["waiting"]["code"] for task in admin.get("/v1/tasks").json()["data"] + tenant.get("/v1/tasks").json()["data"]
             if task["waiting"]}  # fmt: skip
    assert codes == {"waiting_for_quota", "not_before"}
    assert needs()["wanted"] == []


def test_a_node_is_idle_since_the_last_end_there_and_stays_in_the_list_while_it_is_drained(
    database, new_node, tenant, admin, plan, needs
):
    node = new_node()
    task = tenant.task()
    joined = needs()["idle_nodes"][0]["idle_since"]
    plan()
    assert needs()["idle_nodes"] == []
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=Placement.created_at + timedelta(hours=1), leaving=None))
    admin.post(f"/v1/admin/nodes/{node.id}/drain")
    (found,) = needs()["idle_nodes"]
    assert found["drained"]
    assert datetime.fromisoformat(found["idle_since"]) > datetime.fromisoformat(joined)
    assert needs()["free"] == []
    tenant.task()
    plan()
    assert wanted(needs()) == {1: (1, 1, 1)}, "a drained node takes nothing"


@pytest.mark.parametrize("column", ["stopping_since", "removed_at"])
def test_a_node_that_leaves_by_itself_is_no_news(database, new_node, needs, column):
    node = new_node()
    assert idle(needs()) == {node.name: False}
    with database.begin() as session:
        session.execute(update(Node).values({column: Node.joined_at}))
    state = needs()
    assert (state["idle_nodes"], state["free"]) == ([], [])


def test_a_node_that_answers_is_not_idle_but_free(database, new_node, tenant, needs):
    node = new_node()
    with database.begin() as session:
        held = {"base_model": "small", "base_revision": "a" * 64, "precision": "bf16", "dedicated": False}
        now = datetime.now(UTC)
        session.add(
            AnswerSession(
                id="session_1",
                node_id=node.id,
                device_index=0,
                tenant_id=tenant.tenant_id,
                created_at=now,
                lease_until=now,
                used_at=now,
                **held,
            )
        )
    state = needs()
    assert (state["idle_nodes"], state["free"]) == ([], [{"type": "cpu", "gpus": 1}])


def test_a_node_that_merges_is_not_idle_until_the_merge_is_deleted(database, new_node, tenant, needs):
    node = new_node()
    with database.begin() as session:
        of_base = {"base_model": "small", "base_revision": "a" * 64, "lineage": {}, "adapter_files": [], "max_shard_bytes": 1}
        session.add(
            MergedModel(
                id="merged_1",
                tenant_id=tenant.tenant_id,
                adapter_id="adapter_1",
                status=RUNNING,
                bytes=1,
                node_id=node.id,
                **of_base,
            )
        )
    assert idle(needs()) == {}
    assert tenant.delete("/v1/merged-models/merged_1").status_code == 204
    assert idle(needs()) == {node.name: False}
