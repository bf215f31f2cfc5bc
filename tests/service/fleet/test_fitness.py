"""What a node says of itself, and what it is therefore given: its protocol, its capabilities, what it acts upon and refuses."""

from datetime import timedelta

import pytest
from sqlalchemy import func, update

from contract.compatibility.capabilities import understood
from contract.compatibility.protocol import PROTOCOL
from service.fleet.models import BaseModel, Node
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.scripted import ScriptedNode, points


def given(node: ScriptedNode) -> set[str]:
    return {placement.task_id for placement in node.desired().placements}


def waiting(tenant, task) -> tuple[str, str]:
    told = tenant.get(f"/v1/tasks/{task['id']}").json()["waiting"]
    return told["code"], told["sentence"]


@pytest.mark.parametrize(("protocol", "status"), [(PROTOCOL, 201), (PROTOCOL + 1, 201), (PROTOCOL + 2, 409), (99, 409)])
def test_only_neighbouring_protocols_join(client, database, nothing_left, protocol, status):
    token = join_token(database, "newcomer")
    node = ScriptedNode(client, token, "newcomer", said={"protocol": protocol, "versions": {"motet": "9.9"}})
    response = node.try_to_register()
    assert response.status_code == status
    if status == 409:
        assert response.json()["code"] == "protocol_unsupported"
        assert f"node newcomer (motet 9.9) speaks protocol {protocol}" in response.json()["detail"]
    else:
        assert response.json()["protocol"] == PROTOCOL


def test_heartbeats_and_reports_of_a_strange_protocol_are_refused_in_words(tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    beat = node.beat(placement.pulse(), protocol=PROTOCOL + 2)
    report = placement.call("POST", "reports", placement.body(points(0, [1])) | {"protocol": PROTOCOL + 2})
    for refused in (beat, report):
        assert (refused.status_code, refused.json()["code"]) == (409, "protocol_unsupported")
        assert f"speaks protocol {PROTOCOL + 2}" in refused.json()["detail"]


class TestCapabilities:
    def test_a_task_waits_for_a_node_that_understands_it(self, tenant, new_node, plan):
        most = sorted(understood() - {"early_exit.policy=asha"})
        old = new_node("old", slots=2, said={"capabilities": most, "versions": {"motet": "0.1.0"}})
        needs, plain = tenant.task(early_exit={"policy": "asha"}), tenant.task()
        plan()
        assert given(old) == {plain["id"]}
        code, sentence = waiting(tenant, needs)
        assert code == "no_node_understands"
        assert sentence.startswith("No node understands early_exit.policy=asha of its spec: that takes a worker of motet ")
        assert "(old has 0.1.0)" in sentence
        new = new_node("new", said={"capabilities": sorted(understood())})
        plan()
        assert given(new) == {needs["id"]}

    def test_a_worker_that_does_not_say_is_one_of_today(self, tenant, new_node, plan):
        node, task = new_node(), tenant.task(early_exit={"policy": "asha"}, precision="nf4")
        plan()
        assert given(node) == {task["id"]}

    def test_a_task_in_fp8_waits_for_gpus_that_compute_in_it(self, tenant, new_node, plan):
        new_node("old-gpus", said={"capabilities": sorted(understood() - {"precision=fp8"})})
        task = tenant.task(precision="fp8")
        plan()
        code, sentence = waiting(tenant, task)
        assert code == "no_node_understands"
        assert "compute capability 8.9 or later" in sentence
        assert "take precision bf16, or nf4" in sentence
        node = new_node("hopper", said={"capabilities": sorted(understood())})
        plan()
        assert given(node) == {task["id"]}

    def test_a_family_that_no_worker_knows(self, database, tenant, new_node, plan, small_model):
        node = new_node(slots=2)
        try:
            with database.begin() as session:
                session.execute(update(BaseModel).where(BaseModel.name == small_model).values(model_type="mamba9"))
            task = tenant.task()
            plan()
            assert given(node) == set()
            assert "No node understands model_type=mamba9" in waiting(tenant, task)[1]
            assert "a version after" in waiting(tenant, task)[1]
        finally:
            with database.begin() as session:
                session.execute(update(BaseModel).where(BaseModel.name == small_model).values(model_type=None))

    def test_what_an_admin_sees(self, admin, new_node):
        new_node("old"), new_node("new", said={"capabilities": ["training"], "protocol": 2})
        new, old = admin.get("/v1/admin/nodes").json()["data"]
        assert (new["capabilities"], new["protocol"]) == (["training"], 2)
        assert (old["capabilities"], old["protocol"]) == (None, 1)


def test_what_a_node_cannot_read_it_refuses_alone(tenant, new_node, plan):
    """Until it starts anew, as what it then is may read it."""
    node, strange, plain = new_node("old", slots=2), tenant.task(), tenant.task()
    plan()
    refused = node.take(strange["id"])
    assert node.lost(refused, reason="node_lost", detail="spec.nova: Extra inputs", refused=True).status_code == 204
    plan()
    assert given(node) == {plain["id"]}
    code, sentence = waiting(tenant, strange)
    assert code == "no_node_understands"
    assert "old could not read it: spec.nova: Extra inputs" in sentence
    node.reboot()
    plan()
    assert given(node) == {strange["id"], plain["id"]}


class TestApplying:
    def ages(self, database, seconds: float) -> None:
        with database.begin() as session:
            back = timedelta(seconds=seconds)
            session.execute(update(Node).values(behind_since=Node.behind_since - back, applied_at=Node.applied_at - back))

    def test_a_node_that_stops_acting_is_given_nothing_until_it_goes_on(self, database, admin, tenant, new_node, plan):
        node, task = new_node("hung", slots=2), tenant.task()
        version = node.desired().version
        node.beat(applied_version=version, applied_age=1.0)
        plan()
        assert given(node) == {task["id"]}
        node.beat(applied_version=version, applied_age=20.0)  # behind, but for a moment only
        self.ages(database, 60)
        (shown,) = admin.get("/v1/admin/nodes").json()["data"]
        assert shown["status"] == "not_applying"
        assert "it has not acted upon what it should run since" in shown["trouble"]
        other = tenant.task()
        plan()
        assert given(node) == {task["id"]}
        assert waiting(tenant, other)[0] == "node_quarantined"
        assert "it has not acted upon what it should run" in waiting(tenant, other)[1]
        node.beat(applied_version=node.desired().version, applied_age=0.0)
        plan()
        assert given(node) == {task["id"], other["id"]}

    @pytest.mark.parametrize(
        ("behind", "age", "status"),
        [(0, 5000.0, "ready"), (1, 1.0, "ready"), (1, 5000.0, "not_applying")],
        ids=["nothing new came", "it works through many", "it hangs"],
    )
    def test_it_is_the_waiting_change_that_counts_and_not_the_age_alone(self, database, admin, new_node, behind, age, status):
        node = new_node()
        version = node.desired().version - behind
        node.beat(applied_version=version, applied_age=0.0)
        self.ages(database, 5000)
        node.beat(applied_version=version, applied_age=age)
        assert admin.get("/v1/admin/nodes").json()["data"][0]["status"] == status

    def test_a_worker_that_does_not_say_is_believed(self, database, admin, new_node):
        node = new_node()
        node.beat()
        self.ages(database, 5000)
        assert admin.get("/v1/admin/nodes").json()["data"][0]["status"] == "ready"


FULL = "a download waits for room in MOTET_WORKER_DIR"


def test_a_node_without_room_says_so_everywhere_and_is_given_nothing_until_it_has_room(admin, tenant, new_node, plan):
    node, task = new_node("full", slots=2), tenant.task()
    plan()
    placement = node.take(task["id"])
    node.leases(placement.pulse("loading"))
    before = tenant.get(f"/v1/tasks/{task['id']}").json()
    assert before["placement"]["waits_for"] is None
    node.leases(placement.pulse("loading", waits_for=FULL))
    told = tenant.get(f"/v1/tasks/{task['id']}").json()
    assert told["placement"]["waits_for"] == FULL
    assert told["version"] > before["version"], "pollers hear of it"
    (shown,) = admin.get("/v1/admin/nodes").json()["data"]
    assert shown["status"] == "disk_full"
    assert FULL in shown["trouble"]
    (scheduled,) = tenant.get("/v1/schedule").json()["nodes"]
    assert (scheduled["status"], scheduled["trouble"]) == (shown["status"], shown["trouble"])
    other = tenant.task()
    plan()
    assert given(node) == {task["id"]}
    code, sentence = waiting(tenant, other)
    assert code == "node_disk_full"
    assert sentence.startswith("The one node that it fits takes no task: full: it has waited for room on its disk since")
    node.leases(placement.pulse("training"))
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["placement"]["waits_for"] is None
    assert tenant.get("/v1/schedule").json()["nodes"][0]["status"] == "ready"
    plan()
    assert given(node) == {task["id"], other["id"]}


def test_a_node_with_room_is_chosen_before_one_without(tenant, new_node, plan):
    full, task = new_node("full", slots=2), tenant.task()
    plan()
    full.leases(full.take(task["id"]).pulse(waits_for=FULL))
    roomy, other = new_node("roomy"), tenant.task()
    plan()
    assert given(roomy) == {other["id"]}


@pytest.mark.parametrize(
    "ailing", [{"waits_for": FULL, "waits_since": func.now()}, {"quarantined_at": func.now(), "quarantine_reason": "lost 3"}]
)
def test_the_schedule_says_what_is_wrong_with_a_node(database, tenant, new_node, ailing):
    node = new_node("ailing")
    with database.begin() as session:
        session.execute(update(Node).where(Node.id == node.id).values(**ailing))
    (shown,) = tenant.get("/v1/schedule").json()["nodes"]
    assert shown["status"] == ("disk_full" if "waits_for" in ailing else "quarantined")
    assert shown["trouble"]
