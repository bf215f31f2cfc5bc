"""Leases that end are counted against a node as its own reports are: an executor once, however many tasks it had."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from contract.states import RequeueReason
from service.background import reconciler
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.fleet.node_health.node_faults import Fault
from service.fleet.node_health.quarantine import ExecutorLoss, faults_of
from service.fleet.nodes import lose
from service.tasks.lifecycle.placements import lock_placement
from service.tasks.models import Job, Task
from tests.service.scheduler import sharing
from tests.service.scheduler.planned import rows
from tests.service.scheduler.sharing import shared

gpu = sharing.gpu


@pytest.fixture
def expire(database):
    """Have all leases end at this moment."""

    def end() -> None:
        with database.begin() as session:
            session.execute(update(Placement).values(lease_until=clock(session)))

    return end


def only_node(database) -> Node:
    (node,) = rows(database, Node)
    return node


def test_an_executor_of_two_tasks_is_one_loss_as_if_it_were_reported(
    tenant, new_tenant, gpu, plan, database, dependencies, expire
):
    first, second = shared(tenant, new_tenant(), gpu, plan)
    expire()
    reconciler.end_expired_leases(dependencies)
    node = only_node(database)
    assert (len(node.losing), node.device_losses) == (1, {"0": 1})
    assert set(node.losing[0].split("+")) == {first.given.task_id, second.given.task_id}
    assert [task.lost_executors for task in rows(database, Task)] == [1, 1]


def test_a_task_that_was_asked_to_leave_does_not_count_for_the_one_beside_it(
    tenant, new_tenant, gpu, plan, database, dependencies, expire
):
    first, second = shared(tenant, new_tenant(), gpu, plan)
    tenant.post(f"/v1/tasks/{first.given.task_id}/pause")
    expire()
    reconciler.end_expired_leases(dependencies)
    node = only_node(database)
    assert (node.losing, node.device_losses) == ([second.given.task_id], {"0": 1})


def report(node, placements, dependencies, database):
    assert node.lost(*placements).status_code == 204


def stall(node, placements, dependencies, database):
    node.leases(*(one.pulse(age=2 * dependencies.settings.stall_seconds) for one in placements))


def fall_silent(node, placements, dependencies, database):
    with database.begin() as session:
        session.execute(update(Node).values(heartbeat_at=clock(session) - timedelta(days=1)))
    reconciler.give_up_silent_nodes(dependencies)


def reboot(node, placements, dependencies, database):
    node.reboot()


@pytest.mark.parametrize(("lose_all", "crashed"), [(report, True), (stall, True), (fall_silent, False), (reboot, False)])
def test_nor_where_the_loss_is_told_or_seen_otherwise(tenant, new_tenant, gpu, plan, database, dependencies, lose_all, crashed):
    """The one that stays was lost with its executor: the node lost it, and nothing that it had lost before."""
    first, second = shared(tenant, new_tenant(), gpu, plan)
    with database.begin() as session:
        session.execute(update(Node).values(losing=["an earlier one"]))
    tenant.post(f"/v1/tasks/{first.given.task_id}/pause")
    lose_all(gpu, (first, second), dependencies, database)
    node = only_node(database)
    assert (node.losing, node.device_losses) == (["an earlier one", second.given.task_id], {"0": 1} if crashed else {})
    lost = {task.id: task.lost_executors for task in rows(database, Task)}
    assert lost == {first.given.task_id: 0, second.given.task_id: int(crashed)}


def expired(node, placements, dependencies, database):
    with database.begin() as session:
        session.execute(update(Placement).values(lease_until=clock(session)))
    reconciler.end_expired_leases(dependencies)


@pytest.mark.parametrize("lose_all", [report, stall, expired])
@pytest.mark.parametrize("suspect_first", [True, False])
def test_who_sat_beside_a_suspect_is_not_blamed_for_it(
    tenant, new_tenant, new_node, gpu, plan, database, dependencies, lose_all, suspect_first
):
    """Another node lost the suspect before, and nothing else. Its crash here says little of this node, and nothing of a task
    that this node had lost earlier, or of the one beside it."""
    first, second = shared(tenant, new_tenant(), gpu, plan)
    suspect, other = (first, second) if suspect_first else (second, first)
    elsewhere = new_node()
    with database.begin() as session:
        fault = {elsewhere.id: {"losses": 1, "first_at": clock(session).isoformat()}}
        session.execute(update(Task).where(Task.id == suspect.given.task_id).values(faults=fault))
        for node, losing in ((elsewhere, suspect.given.task_id), (gpu, "an earlier one")):
            session.execute(update(Node).where(Node.id == node.id).values(losing=[losing]))
    lose_all(gpu, (first, second), dependencies, database)
    with database.begin() as session:
        node, tasks = session.get_one(Node, gpu.id), session.scalars(select(Task)).all()
        said = {task.id: (task.lost_executors, faults_of(task).get(gpu.id, Fault()).losses) for task in tasks}
        losing = list(node.losing)
    assert said[suspect.given.task_id] == (1, 1)
    if suspect_first:
        assert losing == ["an earlier one"]
        assert said[other.given.task_id] == (1, 0)
    else:
        assert losing[0] == "an earlier one"
        assert losing[1:] == [f"{other.given.task_id}+{suspect.given.task_id}"], "evidence against neither"


@pytest.mark.parametrize("lose_all", [report, stall, fall_silent, reboot, expired])
def test_a_task_that_cannot_be_rewound_keeps_no_device_and_no_other(tenant, new_node, plan, database, dependencies, lose_all):
    """A version that comes later may have given its job a status that this one does not know."""
    node, tasks = new_node(slots=3), [tenant.task()["id"] for _ in range(3)]
    plan()
    placed = sorted((node.take(task) for task in tasks), key=lambda one: one.id)
    node.leases(*(one.pulse() for one in placed))
    broken = [one.given.task_id for one in placed[:2]]

    def write(task, status):
        with database.begin() as session:
            session.execute(update(Job).where(Job.task_id == task).values(status=status))

    def running():
        return [task.id for task in sorted(rows(database, Task), key=lambda task: task.id) if task.status == "running"]

    for task in broken:
        write(task, "cooling")
    lose_all(node, placed, dependencies, database)
    assert all(row.ended_at is not None for row in rows(database, Placement))
    assert running() == sorted(broken)
    for task in reversed(broken):
        reconciler.requeue_running_without_placement(dependencies)
        assert task in running()
        write(task, "pending")
        reconciler.requeue_running_without_placement(dependencies)
        assert task not in running(), "the other is passed over"


def test_two_reconcilers_count_an_executor_once(tenant, new_tenant, gpu, plan, database, dependencies, expire, monkeypatch):
    first, second = shared(tenant, new_tenant(), gpu, plan)
    expire()

    def other_first(session, placement_id):
        monkeypatch.undo()
        lose(dependencies, placement_id, RequeueReason.EXECUTOR_LOST, "the executor's lease ran out", ExecutorLoss.EXECUTOR)
        return lock_placement(session, placement_id)

    monkeypatch.setattr(reconciler, "lock_placement", other_first)
    reconciler.end_expired_leases(dependencies)
    (loss,) = only_node(database).losing
    assert set(loss.split("+")) == {first.given.task_id, second.given.task_id}


def test_executors_beside_each_other_are_a_loss_each(tenant, new_node, plan, database, dependencies, expire):
    node, tasks = new_node(slots=2), [tenant.task()["id"] for _ in range(2)]
    plan()
    node.leases(*(node.take(task).pulse() for task in tasks))
    expire()
    reconciler.end_expired_leases(dependencies)
    shown = only_node(database)
    assert (set(shown.losing), shown.device_losses) == (set(tasks), {"0": 1, "1": 1})


def test_all_that_a_node_never_took_up_is_one_loss(tenant, new_node, plan, database, dependencies, expire):
    node, tasks = new_node(slots=8), {tenant.task()["id"] for _ in range(8)}
    plan()
    assert {placement.task_id for placement in node.desired().placements} == tasks
    expire()
    reconciler.end_expired_leases(dependencies)
    shown = only_node(database)
    assert (len(shown.losing), shown.quarantined_at) == (1, None)
    assert set(shown.losing[0].split("+")) == tasks, "evidence against none of them"
    assert [faults_of(task)[node.id].missed for task in rows(database, Task)] == [1] * 8, "each goes elsewhere first"


def test_a_node_that_falls_silent_is_one_loss_and_crashed_no_task(tenant, new_node, plan, database, dependencies):
    """Its leases end with its last heartbeat, here between two steps of the reconciler."""
    node, tasks = new_node(slots=3), {tenant.task()["id"] for _ in range(3)}
    plan()
    node.leases(*(node.take(task).pulse() for task in tasks))
    reconciler.give_up_silent_nodes(dependencies)
    with database.begin() as session:
        now, lease = clock(session), timedelta(seconds=dependencies.settings.lease_seconds)
        session.execute(update(Node).values(heartbeat_at=now - lease))
        session.execute(update(Placement).values(lease_until=now))
    reconciler.end_expired_leases(dependencies)
    assert {placement.task_id for placement in node.desired().placements} == tasks, "left to the next round"
    reconciler.give_up_silent_nodes(dependencies)
    shown = only_node(database)
    assert (shown.status, len(shown.losing), shown.device_losses, shown.quarantined_at) == ("lost", 1, {}, None)
    assert [(task.status, task.lost_executors) for task in rows(database, Task)] == [("queued", 0)] * 3


def test_what_a_lost_node_still_holds_is_left_to_the_next_round(tenant, new_node, plan, database, dependencies, expire):
    """Its reconciler ended after it marked the node, and before it released the placements."""
    node, tasks = new_node(slots=2), [tenant.task()["id"] for _ in range(2)]
    plan()
    node.leases(*(node.take(task).pulse() for task in tasks))
    with database.begin() as session:
        session.execute(update(Node).values(status="lost"))
    expire()
    reconciler.end_expired_leases(dependencies)
    reconciler.give_up_silent_nodes(dependencies)
    assert len(only_node(database).losing) == 1
    assert [(task.status, task.lost_executors) for task in rows(database, Task)] == [("queued", 0)] * 2
