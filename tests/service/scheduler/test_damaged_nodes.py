"""A node whose row cannot be read: it alone is left out of everything, and says why, until it registers anew. A task whose
faults cannot be read: it alone waits, and says why, until they are repaired."""

import json

import pytest
from sqlalchemy import text

from service.background.reconciler import replan_newly_readable_tasks
from service.fleet.models import Node
from service.tasks.models import Task
from service.usage.usage_queries import device_types_of
from tests.service.scheduler.planned import start, validated

DAMAGED = [{}, [], None, 7, "cpu", [3], [{"index": 0}], [{"index": 0, "type": "cpu", "memory_bytes": "much"}]]


@pytest.fixture
def damage(database):
    """Have a row say something else."""

    def write(id, value, table="nodes", column="devices"):
        with database.begin() as session:
            said = text(f"UPDATE {table} SET {column} = CAST(:value AS jsonb) WHERE id = :id")
            session.execute(said, {"id": id, "value": json.dumps(value)})

    return write


@pytest.mark.parametrize("devices", DAMAGED, ids=json.dumps)
def test_it_costs_no_other_node_its_tasks(tenant, admin, new_node, plan, again, damage, caplog, devices):
    bad, good, lone = new_node("bad"), new_node("good", slots=2), tenant.task()
    damage(bad.id, devices)
    assert plan() == 1
    assert start(good, lone["id"]).given.device_indexes == [0]
    assert bad.desired().placements == []
    (logged,) = [record for record in caplog.records if "node bad" in record.message]
    assert logged.levelname == "ERROR"
    assert "its row's devices cannot be read" in logged.message
    shown = {node["name"]: node for node in admin.get("/v1/admin/nodes").json()["data"]}
    assert (shown["bad"]["status"], shown["bad"]["devices"]) == ("unreadable", [])
    assert "restart its worker, which registers them anew" in shown["bad"]["trouble"]
    assert (shown["good"]["status"], shown["good"]["trouble"]) == ("ready", None)
    assert 'motet_nodes_in_trouble{status="unreadable"} 1.0' in admin.get("/metrics").text
    seen = {node["name"]: node for node in tenant.get("/v1/schedule").json()["nodes"]}
    assert (seen["bad"]["status"], seen["bad"]["gpus"], seen["bad"]["free"]) == ("unreadable", 0, 0)
    needs = admin.get("/v1/admin/autoscaling").json()
    assert [free["gpus"] for free in needs["free"]] == [1]
    assert needs["idle_nodes"] == []
    assert tenant.get("/v1/models").status_code == 200
    later = tenant.task()
    bad.register()
    again()
    assert {placement.task_id for node in (bad, good) for placement in node.desired().placements} == {lone["id"], later["id"]}


@pytest.mark.parametrize("devices", DAMAGED, ids=json.dumps)
def test_what_runs_there_goes_on_and_others_are_planned(tenant, new_node, plan, again, damage, database, devices):
    bad, task = new_node("bad"), tenant.task()
    plan()
    running = start(bad, task["id"])
    damage(bad.id, devices)
    good, other = new_node("good"), tenant.task()
    again()
    assert [placement.task_id for placement in good.desired().placements] == [other["id"]]
    assert [lease.placement_id for lease in bad.leases(running.pulse()).leases] == [running.id]
    assert [placement.task_id for placement in bad.desired().placements] == [task["id"]]
    assert good.lost(good.take(other["id"])).status_code == 204
    with database.begin() as session:
        assert session.get_one(Node, bad.id).unreadable == ("devices",)
        assert device_types_of(session) >= {"cpu"}


COLUMNS = "versions", "tokens_per_second", "capabilities", "losing", "device_losses", "bases"
WRONG = [(column, value) for column in COLUMNS for value in (3, [[1]], {"n": {}}, "all")]
WRONG += [("tokens_per_second", {"m": "3"}), ("device_losses", {"0": "3"})]  # texts, which nothing is added to


@pytest.mark.parametrize(("column", "value"), WRONG)
def test_each_column_costs_its_node_alone(tenant, admin, new_node, plan, again, damage, caplog, column, value):
    bad, task = new_node("bad"), tenant.task()
    plan()
    running = start(bad, task["id"])
    damage(bad.id, value, column=column)
    good, other = new_node("good"), tenant.task()
    again()
    assert [placement.task_id for placement in good.desired().placements] == [other["id"]]
    assert f"node bad is left out of the plan: its row's {column} cannot be read" in caplog.text
    shown = {node["name"]: node for node in admin.get("/v1/admin/nodes").json()["data"]}
    assert (shown["bad"]["status"], shown["good"]["status"]) == ("unreadable", "ready")
    assert column in shown["bad"]["trouble"]
    assert tenant.get("/v1/schedule").status_code == admin.get("/v1/admin/autoscaling").status_code == 200
    assert "\nmotet_devices 1.0\n" in admin.get("/metrics").text
    assert tenant.get("/v1/models").status_code == 200
    assert [lease.placement_id for lease in bad.leases(running.pulse()).leases] == [running.id]
    bad.register()
    healed = {node["name"]: node["status"] for node in admin.get("/v1/admin/nodes").json()["data"]}
    assert healed == {"bad": "ready", "good": "ready"}


@pytest.mark.parametrize("value", [7, {"n": 3}, [[1]], {"n": {"losses": "many"}}], ids=json.dumps)
def test_a_waiting_task_with_damaged_faults_waits_alone(dependencies, tenant, new_node, plan, again, damage, caplog, value):
    bad, sound, node = validated(dependencies, tenant), validated(dependencies, tenant), new_node("n", slots=2)
    damage(bad, value, "tasks", "faults")
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [sound]
    shown = tenant.get(f"/v1/tasks/{bad}").json()
    assert shown["status"] == "queued"
    assert "(tasks.faults) cannot be read" in shown["waiting"]["sentence"]
    assert f"task {bad} is left out of the plan" in caplog.text
    replan_newly_readable_tasks(dependencies)
    assert plan() == 0
    damage(bad, {}, "tasks", "faults")
    replan_newly_readable_tasks(dependencies)
    again()
    assert {placement.task_id for placement in node.desired().placements} == {bad, sound}


@pytest.mark.parametrize("value", [7, {"n": 3}, [[1]]], ids=json.dumps)
def test_a_running_task_with_damaged_faults_goes_on(dependencies, tenant, new_node, plan, again, damage, database, value):
    node, task = new_node("n"), validated(dependencies, tenant)
    plan()
    running = start(node, task)
    damage(task, value, "tasks", "faults")
    other = new_node("other")
    later = validated(dependencies, tenant)
    again()
    assert [placement.task_id for placement in other.desired().placements] == [later]
    assert node.lost(running).status_code == 204
    with database.begin() as session:
        assert set(session.get_one(Task, task).faults) == {node.id}
