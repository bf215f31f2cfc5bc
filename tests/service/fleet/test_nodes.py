"""Nodes: who may speak for one, what a new boot, a stall or a lost executor does to its placements, and what it should run."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.background.reconciler import end_expired_leases, give_up_silent_nodes
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.tasks.models import Task
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import ScriptedNode, moved, points, throughput


@pytest.fixture
def status_of(database):
    """(status, requeue_reason, fence) of a task."""

    def read(task_id):
        with database.begin() as session:
            task = session.get_one(Task, task_id)
            return task.status, task.requeue_reason, task.fence

    return read


@pytest.fixture
def end_of(database):
    """Why a placement ended."""

    def read(placement_id):
        with database.begin() as session:
            return session.get_one(Placement, placement_id).end_reason

    return read


def long_ago(database, model, **columns):
    """Move these moments an hour back, as if nobody had been heard since."""
    with database.begin() as session:
        session.execute(update(model).values({name: clock(session) - timedelta(hours=1) for name in columns}))


def test_a_placement_is_desired_until_its_lease_and_acknowledged_by_its_first_pulse(database, tenant, new_node, plan):
    node = new_node(slots=2)
    version = node.desired().version
    task = tenant.task()
    plan()
    desired = node.desired()
    assert desired.version > version
    (given,) = desired.placements
    assert given.task_id == task["id"]
    assert given.device_indexes == [0]
    assert given.base.revision == "a" * 64
    assert given.base.source == "/nowhere/small"
    assert [job.status for job in given.jobs] == ["pending", "pending"]
    assert given.spec.training.max_seq_len == 64
    assert 0 < given.lease_seconds <= 90
    with database.begin() as session:
        assert session.get_one(Placement, given.placement_id).acknowledged_at is None
    placement = node.take(task["id"])
    answer = node.leases(placement.pulse("loading"))
    assert answer.desired_version == desired.version
    (lease,) = answer.leases
    assert (lease.placement_id, lease.fence, lease.seconds, lease.token) == (given.placement_id, given.fence, 90, given.token)
    with database.begin() as session:
        assert session.get_one(Placement, given.placement_id).acknowledged_at is not None


def test_an_old_credential_or_boot_is_told_to_register(new_node):
    node = new_node()
    old = node.credential
    assert node.beat(boot_id="another boot").json()["code"] == "node_unknown"
    node.reboot()
    for response in (
        node.call("POST", f"nodes/{node.id}/heartbeats", old, {"boot_id": node.boot_id}),
        node.call("GET", f"nodes/{node.id}/desired", old),
        node.call("GET", "nodes/nobody/desired", node.credential),
        node.call("POST", f"nodes/{node.id}/lost", old, {"reason": "executor_lost", "fences": {}}),
    ):
        assert (response.status_code, response.json()["code"]) == (401, "node_unknown")
    assert node.beat().status_code == 200


def test_a_new_boot_loses_what_the_boot_before_it_ran(tenant, new_node, plan, status_of, end_of):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    node.leases(placement.pulse())
    credential, id = node.credential, node.id
    node.reboot()
    assert node.id == id
    assert node.credential != credential
    assert node.desired().placements == []
    assert status_of(task["id"]) == ("queued", "node_lost", placement.given.fence + 1)
    assert end_of(placement.id) == "node_lost"
    assert placement.send(points(0, [1])).json()["code"] == "fence_stale"
    plan()
    assert node.take(task["id"]).given.fence == placement.given.fence + 2


def test_a_pulse_of_an_old_fence_renews_nothing(database, tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    node.lost(placement)
    plan()
    now = node.take(task["id"])
    answer = node.leases(placement.pulse(), now.pulse() | {"fence": placement.given.fence})
    assert answer.leases == []


@pytest.mark.parametrize(
    ("phase", "age", "seconds_a_step", "goes_on"),
    [
        ("training", 119, 0.1, True),
        ("training", 121, 0.1, False),
        ("detaching", 121, 0.1, False),
        ("loading", 599, 0.1, True),  # its process begins; from then on it reports each second, however large the base
        ("loading", 601, 0.1, False),  # stopped, as one that was idle may be when it is given a placement
        ("training", 190, 10, True),  # 20 of its own slow steps
        ("training", 210, 10, False),
    ],
)
def test_an_executor_that_stands_still_loses_its_task(tenant, new_node, plan, status_of, phase, age, seconds_a_step, goes_on):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    placement.report(throughput(steps=10, seconds=10 * seconds_a_step))
    answer = node.leases(placement.pulse(phase, age))
    assert bool(answer.leases) == goes_on
    assert status_of(task["id"])[:2] == (("running", None) if goes_on else ("queued", "executor_lost"))


def test_lost_placements_go_back_once(tenant, new_node, plan, status_of, database):
    node, first, second = new_node(slots=2), tenant.task(), tenant.task()
    plan()
    lost, kept = node.take(first["id"]), node.take(second["id"])
    assert node.lost(lost, detail="exit code 9").status_code == 204
    assert status_of(first["id"]) == ("queued", "executor_lost", lost.given.fence + 1)
    assert status_of(second["id"])[0] == "running"
    before = dump(database)
    assert node.lost(lost).status_code == 204
    assert dump(database) == before
    assert node.leases(kept.pulse()).leases != []


def test_another_nodes_placements_cannot_be_lost(tenant, new_node, plan, status_of):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    thief = new_node()
    said = {"reason": "executor_lost", "fences": {placement.id: placement.given.fence}}
    assert thief.call("POST", f"nodes/{thief.id}/lost", thief.credential, said).status_code == 204
    assert status_of(task["id"])[0] == "running"


def test_a_silent_node_is_lost_and_must_register_again(database, dependencies, tenant, new_node, plan, status_of, end_of):
    node, other, task = new_node(), new_node(), tenant.task()
    plan()
    running = [one for one in (node, other) if one.desired().placements]
    placement = running[0].take(task["id"])
    long_ago(database, Node, heartbeat_at=None)
    give_up_silent_nodes(dependencies)
    assert status_of(task["id"])[:2] == ("queued", "node_lost")
    assert end_of(placement.id) == "node_lost"
    assert node.beat().json()["code"] == other.beat().json()["code"] == "node_unknown"
    plan()
    assert status_of(task["id"])[0] == "queued"
    node.register()
    plan()
    assert node.take(task["id"]).given.fence == placement.given.fence + 2


def test_a_placement_that_nobody_takes_up_goes_back(database, dependencies, tenant, new_node, plan, status_of):
    node, task = new_node(), tenant.task()
    plan()
    end_expired_leases(dependencies)
    assert status_of(task["id"])[0] == "running"
    long_ago(database, Placement, lease_until=None)
    end_expired_leases(dependencies)
    assert status_of(task["id"])[:2] == ("queued", "node_lost")
    assert node.desired().placements == []


def test_a_placement_whose_executor_fell_silent_goes_back(database, dependencies, tenant, new_node, plan, status_of):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    node.leases(placement.pulse())
    long_ago(database, Placement, lease_until=None)
    node.leases()
    end_expired_leases(dependencies)
    assert status_of(task["id"])[:2] == ("queued", "executor_lost")


def test_a_checkpoint_between_two_losses_starts_the_count_anew(tenant, new_node, plan, status_of):
    node, task = new_node(), tenant.task()
    for step in range(1, 8):
        plan()
        placement = node.take(task["id"])
        started = [] if step > 1 else [moved(0, "warmup")]
        placement.report(*started, points(0, [step]), placement.checkpoint({0: step}))
        node.lost(placement)
    assert status_of(task["id"])[0] == "queued"


def test_a_node_shows_what_it_runs(admin, tenant, new_node, plan):
    node, task = new_node("shown", slots=2), tenant.task()
    plan()
    node.take(task["id"]).report(throughput(tokens=1000, seconds=4.0))
    (seen,) = admin.get("/v1/admin/nodes").json()["data"]
    assert (seen["name"], seen["status"], len(seen["devices"])) == ("shown", "ready", 2)
    assert [running["task_id"] for running in seen["running"]] == [task["id"]]
    assert seen["tokens_per_second"] == {"small": 250}
    assert tenant.get("/v1/admin/nodes").status_code == 403


def test_two_boots_at_once_leave_one_that_may_speak(database, client, new_node, tenant, plan):
    node, task = new_node("twice"), tenant.task()
    plan()
    node.take(task["id"])
    first = ScriptedNode(client, join_token(database, "twice"), "twice").register()
    second = ScriptedNode(client, join_token(database, "twice"), "twice").register()
    assert first.beat().status_code == 401
    assert second.beat().status_code == 200
    with database.begin() as session:
        assert len(session.scalars(select(Node)).all()) == 1
