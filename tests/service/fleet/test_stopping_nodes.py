"""A worker that is stopped in order: its tasks go elsewhere at once, and it is given nothing before it starts again."""

from tests.service.fleet.scripted import ScriptedNode


def held(node: ScriptedNode) -> list[str]:
    return [placement.task_id for placement in node.desired().placements]


def test_a_node_that_stops_gets_nothing_back_until_it_starts_again(admin, tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached())
    assert node.lost(reason="node_lost", detail="the worker stops", stopping=True).is_success
    assert node.leases(taken.pulse()).leases, "what it stores now keeps its lease"
    node.lost(taken, reason="node_lost", detail="the worker was stopped", stopping=True)
    plan()
    assert held(node) == []
    (shown,) = [one for one in admin.get("/v1/admin/nodes").json()["data"] if one["id"] == node.id]
    assert "its worker was stopped" in shown["trouble"]
    node.reboot()
    plan()
    assert held(node) == [task["id"]]
