"""A node whose stored devices cannot be read: it alone is left out of everything, and says why, until it registers anew."""

import json

import pytest
from sqlalchemy import text

from service.fleet.models import Node
from service.usage.usage_queries import device_types_of
from tests.service.scheduler.planned import start

DAMAGED = [{}, [], None, 7, "cpu", [3], [{"index": 0}], [{"index": 0, "type": "cpu", "memory_bytes": "much"}]]


@pytest.fixture
def damage(database):
    """Have a node's row say something else of its devices."""

    def write(node, devices):
        with database.begin() as session:
            said = text("UPDATE nodes SET devices = CAST(:devices AS jsonb) WHERE id = :id")
            session.execute(said, {"id": node.id, "devices": json.dumps(devices)})

    return write


@pytest.mark.parametrize("devices", DAMAGED, ids=json.dumps)
def test_it_costs_no_other_node_its_tasks(tenant, admin, new_node, plan, again, damage, caplog, devices):
    bad, good, lone = new_node("bad"), new_node("good", slots=2), tenant.task()
    damage(bad, devices)
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
    damage(bad, devices)
    good, other = new_node("good"), tenant.task()
    again()
    assert [placement.task_id for placement in good.desired().placements] == [other["id"]]
    assert [lease.placement_id for lease in bad.leases(running.pulse()).leases] == [running.id]
    assert [placement.task_id for placement in bad.desired().placements] == [task["id"]]
    assert good.lost(good.take(other["id"])).status_code == 204
    with database.begin() as session:
        assert session.get_one(Node, bad.id).devices == []
        assert device_types_of(session) >= {"cpu"}
