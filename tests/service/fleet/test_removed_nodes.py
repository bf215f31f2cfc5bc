"""Nodes that leave: an admin removes one that is away, long absence removes the others, and what ran there stays readable."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.background.retention import Retention, forget
from service.database.engine import clock
from service.fleet.models import Node, Placement
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.scripted import ScriptedNode

KEEP = Retention()


@pytest.fixture
def listed(admin):
    """The names of the nodes that an admin sees."""
    return lambda: [node["name"] for node in admin.get("/v1/admin/nodes").json()["data"]]


@pytest.fixture
def away(database):
    """Make a node lost, with its last heartbeat so many days ago."""

    def make(node: ScriptedNode, days: float = 0.0) -> None:
        with database.begin() as session:
            last = clock(session) - timedelta(days=days)
            session.execute(update(Node).where(Node.id == node.id).values(status="lost", heartbeat_at=last))

    return make


def test_a_node_that_is_there_or_holds_a_task_is_not_removed(admin, tenant, new_node, plan, away, listed):
    node = new_node("here")
    tenant.task()
    plan()
    refused = admin.delete(f"/v1/admin/nodes/{node.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "node_in_use")
    assert "silent for a lease (90 s)" in refused.json()["detail"]
    away(node)
    held = admin.delete(f"/v1/admin/nodes/{node.id}")
    assert (held.status_code, "still holds a task" in held.json()["detail"]) == (409, True)
    assert tenant.delete(f"/v1/admin/nodes/{node.id}").status_code == 403
    assert listed() == ["here"]


def test_a_removed_node_is_nowhere_listed_and_joins_again_with_a_token(admin, client, tenant, database, new_node, plan, listed):
    node, task = new_node("gone"), tenant.task()
    plan()
    taken = node.take(task["id"])
    node.lost(taken)  # so that it has losses to forget
    admin.post(f"/v1/admin/nodes/{node.id}/drain")
    with database.begin() as session:
        session.execute(update(Node).where(Node.id == node.id).values(status="lost"))
    removed = admin.delete(f"/v1/admin/nodes/{node.id}")
    assert (removed.status_code, removed.json()["name"]) == (200, "gone")
    assert listed() == []
    assert 'motet_nodes{status="lost"}' not in admin.get("/metrics").text
    for again in (admin.delete(f"/v1/admin/nodes/{node.id}"), admin.post(f"/v1/admin/nodes/{node.id}/undrain")):
        assert again.status_code == 404
    with database.begin() as session:
        assert session.scalars(select(Placement.node_id)).all() == [node.id]
    assert node.try_to_register().status_code == 401
    fresh = ScriptedNode(client, join_token(database, "gone"), "gone").register()
    assert (fresh.id, listed()) == (node.id, ["gone"])
    (shown,) = admin.get("/v1/admin/nodes").json()["data"]
    assert (shown["status"], shown["drained_at"], shown["losses"]) == ("ready", None, 0)


def test_a_long_absence_removes_a_node_until_it_comes_back(database, new_node, away, listed):
    node, other, ready = new_node("holiday"), new_node("weekend"), new_node("ready")
    away(node, days=7.1)
    away(other, days=6.9)
    with database.begin() as session:
        long = clock(session) - timedelta(days=30)
        session.execute(update(Node).where(Node.id == ready.id).values(heartbeat_at=long))  # the reconciler has yet to look
    assert forget(database, KEEP)["nodes"] == 1
    assert listed() == ["ready", "weekend"]
    node.register()
    assert listed() == ["holiday", "ready", "weekend"]


def test_rows_of_removed_nodes_go_once_nothing_names_them(database, tenant, new_node, plan, away):
    named, unnamed, lately = new_node("named", slots=2), new_node("unnamed"), new_node("lately")
    back = new_node("back")
    tenant.task(gpus=2)
    plan()
    assert named.desired().placements
    with database.begin() as session:
        now = clock(session)
        session.execute(update(Placement).values(ended_at=now))
    for node in (named, unnamed, lately):
        away(node, days=100)
    forget(database, KEEP)
    with database.begin() as session:
        removed = {named.id: 91, unnamed.id: 91, lately.id: 89}
        for id, days in removed.items():
            session.execute(update(Node).where(Node.id == id).values(removed_at=now - timedelta(days=days)))
        # as a process of the version before welcomes it again
        values = {"status": "ready", "removed_at": now - timedelta(days=91), "heartbeat_at": now}
        session.execute(update(Node).where(Node.id == back.id).values(**values))
    assert forget(database, KEEP)["nodes"] == 1
    with database.begin() as session:
        assert sorted(session.scalars(select(Node.name))) == ["back", "lately", "named"]
