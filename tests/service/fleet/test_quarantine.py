"""Whose fault a loss is: bad nodes fail no task, bad tasks end, and nodes that lose everything are tried with care."""

import pytest
from sqlalchemy import update

from service.background.reconciler import end_expired_leases
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.tasks.models import Task
from tests.service.fleet.scripted import ScriptedNode, completed, moved, points


@pytest.fixture
def nodes_of(admin):
    """What an admin sees of the nodes, by name."""
    return lambda: {node["name"]: node for node in admin.get("/v1/admin/nodes").json()["data"]}


def given(node: ScriptedNode) -> set[str]:
    return {placement.task_id for placement in node.desired().placements}


def lose(node: ScriptedNode, task: dict) -> None:
    placement = node.take(task["id"])
    placement.report(placement.attached(), moved(0, "warmup"), points(0, [1, 2]))
    assert node.lost(placement, detail="killed by signal 9 (out of memory?)").status_code == 204


def train(node: ScriptedNode, task: dict) -> None:
    """To its end: both jobs complete."""
    placement = node.take(task["id"])
    placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
    for job in (0, 1):
        placement.report(points(job, [1, 20], series="val_loss"), placement.adapter(job, 1.0), completed(job))


def seen(tenant, task: dict) -> dict:
    return tenant.get(f"/v1/tasks/{task['id']}").json()


def test_a_node_that_loses_three_in_a_row_takes_no_more_and_says_so(tenant, admin, new_node, plan, rested, nodes_of):
    node, tasks = new_node("bad"), [tenant.task(), tenant.task()]
    plan()
    for _ in range(3):
        (running,) = given(node)
        lose(node, {"id": running})
        plan()
        if nodes_of()["bad"]["losses"] < 3:
            rested()
    shown = nodes_of()["bad"]
    assert (shown["status"], shown["losses"]) == ("quarantined", 3)
    assert "3 placements in a row were lost here; the last one: killed by signal 9 (out of memory?)" in shown["trouble"]
    assert given(node) == set()
    assert 'motet_nodes_in_trouble{status="quarantined"} 1.0' in admin.get("/metrics").text
    for task in tasks:
        told = seen(tenant, task)
        assert (told["status"], told["waiting"]["code"]) == ("queued", "node_quarantined")
        assert "quarantined" in told["waiting"]["sentence"]


def test_no_tenant_reads_the_words_of_anothers_loss(tenant, new_tenant, new_node, plan, rested, nodes_of):
    """A worker's words may name the task and its files; the owner and admins are told them."""
    node, task, other = new_node("words"), tenant.task(), new_tenant()
    quarantined(node, task, plan, rested)
    words = "killed by signal 9"
    assert words in seen(tenant, task)["requeue_detail"]
    assert words in nodes_of()["words"]["trouble"]
    waits = other.task()
    plan()
    waiting = seen(other, waits)["waiting"]
    assert (waiting["code"], words in waiting["sentence"]) == ("node_quarantined", False)
    assert "it lost 3 placements in a row" in waiting["sentence"]
    schedule = other.get("/v1/schedule")
    assert "it lost 3 placements in a row" in schedule.text
    assert words not in schedule.text


def quarantined(node: ScriptedNode, task: dict, plan, rested) -> None:
    for loss in range(3):
        plan() if loss < 2 else rested()
        lose(node, task)
    plan()
    assert given(node) == set()


def test_a_bad_node_fails_nobody_however_often_it_is_tried(tenant, new_node, plan, rested):
    node, task = new_node(), tenant.task()
    quarantined(node, task, plan, rested)
    for _ in range(9):
        rested()
        lose(node, task)
    assert seen(tenant, task)["status"] == "queued"


def test_each_try_that_fails_is_followed_by_a_longer_rest(database, tenant, new_node, plan, rested):
    node, task = new_node(), tenant.task()
    quarantined(node, task, plan, rested)
    rests = []
    for _ in range(3):
        with database.begin() as session:
            rests.append((session.get_one(Node, node.id).rests_until - clock(session)).total_seconds())
        rested()
        lose(node, task)
    assert [round(rest / 60) for rest in rests] == [1, 2, 4]


def test_a_node_under_trial_takes_one_task_and_a_checkpoint_mends_it(tenant, new_node, plan, rested, nodes_of):
    node, first = new_node("tried", slots=3), tenant.task()
    quarantined(node, first, plan, rested)
    others = [tenant.task(), tenant.task()]
    plan()
    rested()
    (tried,) = given(node)
    assert tried in {task["id"] for task in others}, "not the task that was lost there"
    assert nodes_of()["tried"]["status"] == "quarantined"
    placement = node.take(tried)
    placement.report(placement.attached(), moved(0, "warmup"), points(0, [1]), placement.checkpoint({0: 1}))
    shown = nodes_of()["tried"]
    assert (shown["status"], shown["losses"], shown["trouble"]) == ("ready", 0, None)
    plan()
    rested()
    assert given(node) == {first["id"], *(task["id"] for task in others)}


def test_a_new_boot_is_tried_at_once_unless_it_comes_of_a_crash(tenant, new_node, plan, rested):
    node, task = new_node(), tenant.task()
    quarantined(node, task, plan, rested)
    rested()
    assert given(node) == {task["id"]}
    node.reboot()  # with the task in hand
    plan()
    assert given(node) == set()
    node.reboot()
    plan()
    rested()
    assert given(node) == {task["id"]}


def test_an_admin_takes_a_node_out_of_quarantine(admin, tenant, new_node, plan, rested, nodes_of):
    node, task = new_node("mended", slots=2), tenant.task()
    quarantined(node, task, plan, rested)
    assert admin.post(f"/v1/admin/nodes/{node.id}/undrain").json()["status"] == "ready"
    other = tenant.task()
    plan()
    rested()
    assert given(node) == {task["id"], other["id"]}


def test_a_task_goes_to_another_node_first(tenant, new_node, plan):
    nodes, task = [new_node(), new_node()], tenant.task()
    plan()
    (bad,) = [node for node in nodes if given(node)]
    (other,) = [node for node in nodes if node is not bad]
    lose(bad, task)
    plan()
    assert given(other) == {task["id"]}
    assert given(bad) == set()


def test_three_tasks_beside_a_bad_node_all_succeed(tenant, new_node, plan, rested, nodes_of):
    bad, good = new_node("bad"), new_node("good")
    tasks = {task["id"]: task for task in (tenant.task() for _ in range(3))}
    plan()
    for _ in range(12):  # whatever the bad one is given it loses; the good one finishes one for every two of these
        for lost in given(bad):
            lose(bad, tasks[lost])
        rested()
        for lost in given(bad):
            lose(bad, tasks[lost])
        for done in given(good):
            train(good, tasks[done])
        plan()
    assert [seen(tenant, task)["status"] for task in tasks.values()] == ["succeeded"] * 3
    assert nodes_of()["good"]["losses"] == 0
    assert nodes_of()["bad"]["losses"] > 0


def test_a_task_that_is_lost_on_two_nodes_fails_and_neither_is_quarantined(tenant, new_node, plan, rested, nodes_of):
    nodes, task = [new_node("one"), new_node("two")], tenant.task()
    plan()
    for loss in range(1, 6):
        (node,) = [node for node in nodes if given(node)]
        lose(node, task)
        assert seen(tenant, task)["status"] == ("queued" if loss < 5 else "failed")
        plan()
        rested()
    told = seen(tenant, task)
    assert "5 executors in a row were lost while they trained this task, on 2 nodes" in told["error"]
    assert "out of memory?" in told["error"]
    assert told["jobs"]["failed"] == 2
    assert {node["status"] for node in nodes_of().values()} <= {"ready", "resting"}


def test_a_task_that_only_the_one_node_knows_ends_when_others_train_there(tenant, new_node, plan, rested):
    node, bad = new_node(slots=2), tenant.task()
    plan()
    for loss in range(1, 6):
        lose(node, bad)
        assert seen(tenant, bad)["status"] == ("queued" if loss < 5 else "failed")
        if loss < 5:
            good = tenant.task()
            plan()
            train(node, good)
            rested()
    assert "on one node, which trains other tasks" in seen(tenant, bad)["error"]


def test_placements_that_are_never_taken_up_count_for_the_node_alone(
    database, dependencies, tenant, new_node, plan, rested, nodes_of
):
    node, task = new_node("deaf"), tenant.task()
    plan()
    for _ in range(3):
        assert given(node) == {task["id"]}
        with database.begin() as session:
            session.execute(update(Placement).values(lease_until=clock(session)))
        end_expired_leases(dependencies)
        plan()
        if nodes_of()["deaf"]["losses"] < 3:
            rested()
    shown = nodes_of()["deaf"]
    assert shown["status"] == "quarantined"
    assert "the node never took the placement up" in shown["trouble"]
    with database.begin() as session:
        assert session.get_one(Task, task["id"]).lost_executors == 0


def test_a_node_that_starts_no_executors_fails_no_task_though_it_trains_others(
    database, tenant, new_node, plan, rested, nodes_of
):
    """Its system has no more processes: neither the task nor a device is at fault."""
    node, task = new_node("few", slots=2), tenant.task()
    plan()
    for _ in range(6):
        assert node.lost(node.take(task["id"]), detail="could not be started", untaken=True).status_code == 204
        good = tenant.task()
        plan()
        train(node, good)
        rested()
    assert seen(tenant, task)["status"] == "running"
    assert nodes_of()["few"]["device_losses"] == {}
    with database.begin() as session:
        assert session.get_one(Task, task["id"]).lost_executors == 0
    for _ in range(3):
        node.lost(node.take(task["id"]), detail="could not be started", untaken=True)
        rested()
    assert nodes_of()["few"]["status"] == "quarantined"


def test_a_broken_device_beside_sound_ones_fails_nobody_and_is_taken_last(admin, tenant, new_node, plan, rested, nodes_of):
    """Device 0 kills whatever it gets, while the others train: the node as a whole looks well."""
    node, task = new_node("mixed", slots=3), tenant.task()
    plan()
    placement = node.take(task["id"])
    assert placement.given.device_indexes == [0]
    lose(node, task)
    rested()
    assert node.take(task["id"]).given.device_indexes == [1], "not where it was lost"
    beside, third = tenant.task(), tenant.task()
    plan()
    assert [node.take(one["id"]).given.device_indexes for one in (beside, third)] == [[2], [0]], "the one that loses comes last"
    lose(node, third)
    assert nodes_of()["mixed"]["device_losses"] == {"0": 2}
    train(node, task)
    assert nodes_of()["mixed"]["device_losses"] == {"0": 2}, "what others train says nothing about it"
    rested()
    assert node.take(third["id"]).given.device_indexes == [1]
    fourth = tenant.task()
    plan()
    assert node.take(fourth["id"]).given.device_indexes == [0]
    train(node, fourth)
    assert nodes_of()["mixed"]["device_losses"] == {}
