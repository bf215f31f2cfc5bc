"""Leaving a node in order: pause, resume and drain, ended by the worker's word or, if that comes first, by its lease."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.background.reconciler import end_expired_leases
from service.database.engine import clock
from service.fleet.models import Placement
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import completed, moved, points, throughput


@pytest.fixture
def running(tenant, new_node, plan):
    """A task whose two jobs have trained three steps on a node that has acknowledged it."""
    node = new_node()
    task = tenant.task()
    plan()
    placement = node.take(task["id"])
    node.leases(placement.pulse())
    placement.report(
        placement.attached(), *(moved(job, "warmup") for job in (0, 1)), *(points(job, [1, 2, 3]) for job in (0, 1))
    )
    return placement


@pytest.fixture
def act(tenant):
    """Do something to a task as its tenant: `act("pause", task_id)`."""

    def do(what, task_id, status=200):
        answer = tenant.post(f"/v1/tasks/{task_id}/{what}")
        assert answer.status_code == status, answer.text
        return answer.json()

    return do


def leaves(node, task_id):
    return {placement.task_id: placement.leave for placement in node.desired().placements}[task_id]


def row(database, model, id):
    with database.begin() as session:
        return session.get_one(model, id)


@pytest.mark.parametrize("how", ["pause", "drain"])
def test_a_placement_that_reports_before_its_first_heartbeat_keeps_what_it_trained(tenant, admin, new_node, plan, act, how):
    """Its node's heartbeats are late, or fail for a moment."""
    node, task_id = new_node(), tenant.task()["id"]
    plan()
    placement = node.take(task_id)
    placement.report(placement.attached(), moved(0, "warmup"), points(0, [1, 2, 3]), throughput(3, tokens=300))
    if how == "pause":
        act("pause", task_id)
    else:
        assert admin.post(f"/v1/admin/nodes/{node.id}/drain", json={"evict": True}).status_code == 200
    assert leaves(node, task_id)
    placement.report(placement.checkpoint({0: 3}), {"kind": "detached"})
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert (task["status"], task["progress"]["steps_done"]) == ("paused" if how == "pause" else "queued", 3)
    assert tenant.get("/v1/usage").json()["total"]["rewound_tokens"] == 0


def test_a_running_task_pauses_once_its_jobs_are_safe_and_resumes_where_it_stood(database, tenant, running, act, plan):
    task_id, node = running.given.task_id, running.node
    paused = act("pause", task_id)
    assert (paused["status"], paused["desired_status"]) == ("running", "paused")
    assert act("pause", task_id)["version"] == paused["version"], "twice is once"
    assert leaves(node, task_id)
    running.report(points(0, [4]), points(1, [4]), running.checkpoint({0: 4, 1: 4}), {"kind": "detached"})
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert (task["status"], task["desired_status"], task["requeue_reason"]) == ("paused", None, "paused")
    assert task["progress"]["steps_done"] == 8
    assert node.desired().placements == []
    assert row(database, Task, task_id).fence > running.given.fence
    assert row(database, Placement, running.id).end_reason == "paused"
    plan()
    assert node.desired().placements == []

    before = dump(database)
    assert running.send(points(0, [5]), seq=running.seq).status_code == 409
    assert dump(database) == before

    assert act("resume", task_id)["status"] == "queued"
    plan()
    again = node.take(task_id)
    assert [(job.status, job.checkpoint.step) for job in again.given.jobs] == [("warmup", 4), ("warmup", 4)]
    again.report(again.attached(), points(0, [5]), points(1, [5]))
    assert {tuple(c["steps"]) for c in tenant.get(f"/v1/tasks/{task_id}/metrics").json()["data"]} == {(1, 2, 3, 4, 5)}


def test_its_lease_is_no_longer_renewed_and_its_end_is_the_pauses(database, dependencies, tenant, running, act):
    task_id = running.given.task_id
    running.report(running.checkpoint({0: 2, 1: 2}))
    act("pause", task_id)
    until = row(database, Placement, running.id).lease_until
    (lease,) = running.node.leases(running.pulse("detaching")).leases
    assert 0 < lease.seconds < dependencies.settings.lease_seconds
    assert row(database, Placement, running.id).lease_until == until
    with database.begin() as session:
        session.execute(update(Placement).values(lease_until=clock(session) - timedelta(seconds=1)))
    end_expired_leases(dependencies)
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert (task["status"], task["requeue_reason"], task["progress"]["steps_done"]) == ("paused", "paused", 4)


def test_an_executor_lost_on_the_way_to_a_pause_is_a_pause(tenant, running, act):
    act("pause", running.given.task_id)
    assert running.node.lost(running).status_code == 204
    task = tenant.get(f"/v1/tasks/{running.given.task_id}").json()
    assert (task["status"], task["requeue_reason"]) == ("paused", "paused")


def test_a_pause_taken_back_on_its_way_leads_to_the_queue(tenant, running, act, plan):
    task_id = running.given.task_id
    act("pause", task_id)
    assert act("resume", task_id)["desired_status"] == "queued"
    running.report(running.checkpoint({0: 3, 1: 3}), {"kind": "detached"})
    assert tenant.get(f"/v1/tasks/{task_id}").json()["status"] == "queued"
    plan()
    assert running.node.take(task_id).given.jobs[0].checkpoint.step == 3


def test_what_ends_on_its_way_to_a_pause_has_ended(tenant, running, act):
    task_id = running.given.task_id
    act("pause", task_id)
    running.report(completed(0, loss=None, best_step=None), running.adapter(1, 1.0), completed(1), {"kind": "detached"})
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert (task["status"], task["desired_status"]) == ("succeeded", None)
    for what in ("pause", "resume"):
        assert act(what, task_id, status=409)["code"] == "task_ended"


def test_a_cancel_on_the_way_to_a_pause_is_final(tenant, running, act):
    task_id = running.given.task_id
    act("pause", task_id)
    assert act("cancel", task_id)["status"] == "cancelled"
    assert running.send({"kind": "detached"}).status_code == 409
    assert tenant.get(f"/v1/tasks/{task_id}").json()["status"] == "cancelled"


def test_a_placement_that_nobody_took_up_pauses_at_once(tenant, new_node, plan, act):
    new_node()
    task = tenant.task()
    plan()
    assert act("pause", task["id"])["status"] == "paused"


def test_a_queued_task_pauses_at_once_and_one_in_validation_as_soon_as_it_is_valid(
    dependencies, tenant, nothing_left, act, plan, new_node
):
    queued = tenant.task()
    plan()
    assert act("pause", queued["id"])["status"] == "paused"
    checked = tenant.task()
    assert act("pause", checked["id"])["desired_status"] == "paused"
    other = tenant.task()
    act("pause", other["id"])
    assert act("resume", other["id"])["desired_status"] is None
    validate_due(dependencies.db, dependencies.storage, dependencies.queue)
    assert tenant.get(f"/v1/tasks/{checked['id']}").json()["status"] == "paused"
    node = new_node(slots=3)
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [other["id"]]
    assert act("cancel", queued["id"])["status"] == "cancelled"


def test_another_tenants_task_cannot_be_paused(new_tenant, running):
    stranger = new_tenant()
    for what in ("pause", "resume"):
        assert stranger.post(f"/v1/tasks/{running.given.task_id}/{what}").status_code == 404


def test_a_drained_node_finishes_what_it_runs_and_takes_nothing_new(admin, running, plan, tenant, new_node):
    node = running.node
    drained = admin.post(f"/v1/admin/nodes/{node.id}/drain").json()
    assert drained["drained_at"] is not None
    assert not leaves(node, running.given.task_id)
    waits = tenant.task()
    plan()
    running.report(completed(0, loss=None, best_step=None), running.adapter(1, 1.0), completed(1))
    plan()
    assert node.reboot().desired().placements == [], "a new boot is no undraining"
    plan()
    assert node.desired().placements == []
    assert admin.post(f"/v1/admin/nodes/{node.id}/undrain").json()["drained_at"] is None
    plan()
    node.take(waits["id"])
    for what in ("drain", "undrain"):
        assert admin.post(f"/v1/admin/nodes/node_0/{what}").status_code == 404
        assert tenant.post(f"/v1/admin/nodes/{node.id}/{what}").status_code == 403


def test_an_evicted_task_goes_on_elsewhere_from_its_checkpoint(admin, running, plan, new_node, tenant, database):
    task_id = running.given.task_id
    other = new_node()
    for _ in range(2):
        assert admin.post(f"/v1/admin/nodes/{running.node.id}/drain", json={"evict": True}).status_code == 200
    assert leaves(running.node, task_id)
    running.report(running.checkpoint({0: 3, 1: 3}), {"kind": "detached"})
    task = tenant.get(f"/v1/tasks/{task_id}").json()
    assert (task["status"], task["requeue_reason"]) == ("queued", "node_drained")
    assert task["requeue_detail"] == f"node {running.node.name} is being drained"
    plan()
    assert other.take(task_id).given.jobs[0].checkpoint.step == 3
    with database.begin() as session:
        assert session.scalar(select(Task.lost_executors).where(Task.id == task_id)) == 0
