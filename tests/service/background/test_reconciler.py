"""The reconciler finds, in Postgres alone, whatever a hint, a node or a process has dropped; and several do not fight."""

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from contract.states import RequeueReason
from service.background import reconciler
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.models import Node, Placement
from service.scheduler.models import PlanRequest
from service.tasks.models import Job, Task
from service.tasks.submission.validator import Validator
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import moved, points


@pytest.fixture
def dependencies(dependencies):
    """Of a reconciler that takes for missed what is half an hour old: nothing becomes so while a test runs."""
    return replace(dependencies, settings=dependencies.settings.model_copy(update={"reconcile_seconds": 1800.0}))


@pytest.fixture
def later(database):
    """As if this long had passed since these moments."""

    def age(model, *columns, seconds=3600):
        with database.begin() as session:
            moment = clock(session) - timedelta(seconds=seconds)
            session.execute(update(model).values(dict.fromkeys(columns, moment)))

    return age


def status_of(database, task_id):
    with database.begin() as session:
        task = session.get_one(Task, task_id)
        return task.status, task.requeue_reason


def test_a_task_goes_all_the_way_without_any_wake_up(database, dependencies, tenant, new_node, later):
    node, task = new_node(), tenant.task()
    validator = Validator(dependencies, missed_after=dependencies.settings.reconcile_seconds)
    assert validator.run_due() == 0, "a moment ago: the queue worker's turn"
    later(Task, "created_at")
    assert validator.run_due() == 1
    reconciler.once(dependencies)
    later(PlanRequest, "created_at")
    reconciler.once(dependencies)
    assert status_of(database, task["id"])[0] == "running"
    assert node.take(task["id"])


def test_a_running_task_without_a_placement_is_queued_again(database, dependencies, tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    placement = node.take(task["id"])
    placement.report(moved(0, "warmup"), points(0, [1]))
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=clock(session), end_reason="nobody knows"))
    reconciler.once(dependencies)
    assert status_of(database, task["id"]) == ("queued", RequeueReason.EXECUTOR_LOST)
    assert placement.send(points(0, [2])).json()["code"] == "fence_stale"
    plan()
    assert node.take(task["id"]).given.jobs[0].status == "pending"


def test_a_task_with_a_damaged_row_keeps_no_other_from_its_turn(database, dependencies, tenant, new_node, plan, caplog):
    tasks = [tenant.task()["id"] for _ in range(2)]
    new_node(), new_node()
    plan()
    with database.begin() as session:
        session.execute(update(Placement).values(ended_at=clock(session), end_reason="nobody knows"))
        session.execute(update(Job).where(Job.task_id == tasks[0]).values(checkpoint={"n": 3}))
    reconciler.once(dependencies)
    assert f"the rewind of task {tasks[0]} failed and will be tried again: job 0: the stored checkpoint" in caplog.text
    assert [status_of(database, task)[0] for task in tasks] == ["running", "queued"]


@pytest.mark.parametrize("status", ["cancelled", "queued"])
def test_a_placement_whose_task_is_not_running_is_ended(database, dependencies, tenant, new_node, plan, status):
    node, task = new_node(), tenant.task()
    plan()
    with database.begin() as session:
        session.execute(update(Task).values(status=status, fence=Task.fence + 1))
        etag = session.get_one(Task, task["id"]).version
    version = node.desired().version
    reconciler.end_placements_of_ended_tasks(dependencies)
    desired = node.desired()
    assert desired.placements == []
    assert desired.version > version
    with database.begin() as session:
        assert session.get_one(Task, task["id"]).version > etag, "who polls is told"
    assert status_of(database, task["id"])[0] == status


def test_a_sound_state_is_left_exactly_as_it_is(database, dependencies, tenant, new_node, plan):
    node, running, _ = new_node(), tenant.task(), tenant.task()
    plan()
    placed = node.desired().placements[0]
    placement = node.take(placed.task_id)
    node.leases(placement.pulse())
    placement.report(moved(0, "warmup"), points(0, [1]))
    with database.begin() as session:  # of a placement that outlasts its end there is more to do
        session.execute(update(Placement).values(expected_end=clock(session) + timedelta(hours=1)))
    before = dump(database)
    reconciler.once(dependencies)
    assert dump(database) == before
    assert running


def test_reconcilers_at_once_do_each_thing_once(database, settings, dependencies, tenant, new_node, plan, later):
    nodes = [new_node() for _ in range(3)]
    tasks = [tenant.task() for _ in range(3)]
    plan()
    fences = {placement.task_id: placement.fence for node in nodes for placement in node.desired().placements}
    assert len(fences) == 3
    later(Node, "heartbeat_at")
    later(Placement, "lease_until")
    gate, failures = threading.Barrier(4), []

    def reconcile_once():
        own = Dependencies.of(settings)
        gate.wait()
        try:
            for step in reconciler.STEPS:
                step(own)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test shows it)
            failures.append(error)
        finally:
            own.db.engine.dispose()

    threads = [threading.Thread(target=reconcile_once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with database.begin() as session:
        for task in session.scalars(select(Task)):
            assert task.status == "queued"
            assert task.fence == fences[task.id] + 1
        lost = list(session.scalars(select(PlanRequest.reason).where(PlanRequest.reason == "node_lost")))
    assert len(tasks) == 3
    assert len(lost) <= 6  # one for each node, one for each task, less what is planned already


def test_a_step_that_fails_is_tried_again_and_keeps_no_other_from_its_turn(dependencies, monkeypatch, caplog):
    done = []

    def fails(_):
        raise OSError("storage is away")

    monkeypatch.setattr(reconciler, "STEPS", (fails, lambda _: done.append(1)))
    reconciler.once(dependencies)
    reconciler.once(dependencies)
    assert done == [1, 1]
    assert caplog.text.count("storage is away") == 2
