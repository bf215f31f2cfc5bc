"""A worker that is stopped in order: its tasks go elsewhere at once, it is given nothing before it starts again, and no loss
is counted against it."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from service.background.reconciler import give_up_silent_nodes
from service.database.engine import clock
from service.fleet.models import Node
from tests.service.fleet.scripted import ScriptedNode, moved, points


@pytest.fixture
def shown(admin):
    """What an admin sees of a node."""

    def of(node: ScriptedNode) -> dict:
        (found,) = [one for one in admin.get("/v1/admin/nodes").json()["data"] if one["id"] == node.id]
        return found

    return of


def held(node: ScriptedNode) -> list[str]:
    return [placement.task_id for placement in node.desired().placements]


def stops(node: ScriptedNode) -> None:
    assert node.lost(reason="node_lost", detail="the worker stops", stopping=True).is_success


@pytest.fixture
def falls_silent(database, dependencies):
    def silence(node: ScriptedNode) -> None:
        with database.begin() as session:
            ago = clock(session) - timedelta(hours=1)
            session.execute(update(Node).where(Node.id == node.id).values(heartbeat_at=ago))
        give_up_silent_nodes(dependencies)

    return silence


def test_a_node_that_stops_gets_nothing_back_until_it_starts_again(tenant, new_node, plan, shown):
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached())
    node.leases(taken.pulse())
    stops(node)
    assert node.leases(taken.pulse()).leases, "what it stores now keeps its lease"
    node.lost(taken, reason="node_lost", detail="the worker was stopped", stopping=True)
    plan()
    assert held(node) == []
    waiting = tenant.get(f"/v1/tasks/{task['id']}").json()["waiting"]
    assert (waiting["code"], shown(node)["status"]) == ("node_drained", "stopping")
    assert "its worker is being stopped since" in shown(node)["trouble"]
    node.reboot()
    plan()
    assert held(node) == [task["id"]]
    assert (shown(node)["status"], shown(node)["losses"]) == ("ready", 0)


def test_a_node_that_an_older_process_welcomed_is_there_again(tenant, new_node, plan, shown, database):
    node, task = new_node(), tenant.task()
    stops(node)
    with database.begin() as session:  # as that process leaves it: it knows neither column
        now = clock(session)
        values = {"boot_id": "new", "joined_at": now, "removed_at": now - timedelta(seconds=1)}
        session.execute(update(Node).where(Node.id == node.id).values(**values))
    node.boot_id = "new"
    node.leases()
    plan()
    assert (held(node), shown(node)["status"]) == ([task["id"]], "ready")
    stops(node)
    node.leases()
    assert shown(node)["status"] == "stopping"


def test_a_node_that_stops_gives_back_what_it_has_not_taken_up(tenant, new_node, plan, shown):
    node, task = new_node(), tenant.task()
    plan()
    stops(node)
    assert held(node) == []
    told = tenant.get(f"/v1/tasks/{task['id']}").json()
    assert (told["status"], shown(node)["losses"]) == ("queued", 0)


def test_a_checkpoint_stored_while_it_stops_does_not_open_it(tenant, new_node, plan, shown):
    node, task, other = new_node(slots=2), tenant.task(), tenant.task()
    plan()
    placement = node.take(task["id"])
    node.lost(node.take(other["id"]))  # so that the checkpoint has a loss to mend
    placement.report(placement.attached(), moved(0, "warmup"), points(0, [1]))
    node.leases(placement.pulse())
    stops(node)
    placement.report(placement.checkpoint({0: 1}))
    plan()
    assert (held(node), shown(node)["status"], shown(node)["losses"]) == ([task["id"]], "stopping", 0)


def test_a_node_that_stopped_is_told_apart_from_a_lost_one(admin, tenant, new_node, plan, shown, falls_silent):
    node, lost, task = new_node(), new_node(), tenant.task()
    plan()
    for one in (node, lost):
        for given in held(one):
            one.leases(one.take(given).pulse())
    stops(node)
    falls_silent(node)
    falls_silent(lost)
    assert (shown(node)["status"], shown(lost)["status"]) == ("stopped", "lost")
    assert shown(node)["trouble"] is None
    metrics = admin.get("/metrics").text
    assert 'motet_nodes{status="stopped"} 1.0' in metrics
    assert 'motet_nodes{status="lost"} 1.0' in metrics
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["status"] == "queued"
    node.register()
    assert shown(node)["status"] == "ready"


@pytest.mark.parametrize("how", ["silent", "reboots"])
def test_what_a_node_held_at_its_end_counts_as_no_loss_if_it_had_said_so(tenant, new_node, plan, shown, falls_silent, how):
    orderly, other = new_node(), new_node()
    tasks = [tenant.task(), tenant.task()]
    plan()
    for node in (orderly, other):
        (given,) = held(node)
        node.leases(node.take(given).pulse())
    stops(orderly)
    for node in (orderly, other):
        falls_silent(node) if how == "silent" else node.reboot()
    assert (shown(orderly)["losses"], shown(other)["losses"]) == (0, 1)
    assert {tenant.get(f"/v1/tasks/{task['id']}").json()["status"] for task in tasks} == {"queued"}
