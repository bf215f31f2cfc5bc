"""A task whose stored results cannot be read: no node can be told of its placement, and none is blamed for it."""

import pytest
from sqlalchemy import select, update

from service.background import reconciler
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.tasks.models import Job, Task
from tests.service.fleet.scripted import completed
from tests.service.scheduler.planned import live, rows, start, validated

DAMAGES = [
    *((Task.base_scores, value) for value in (3, [[1]], {"n": 3})),
    *((Job.boundary_scores, value) for value in (3, {"n": 3})),
    *((Job.checkpoint, value) for value in (3, [[1]], {"n": 3})),
]


def damage(database, task, column, value):
    with database.begin() as session:
        table = column.class_.__table__
        mine = table.c.id == task if table.name == "tasks" else table.c.task_id == task
        session.execute(update(table).where(mine).values({column.key: value}))


def expire(database, dependencies):
    with database.begin() as session:
        session.execute(update(Placement).values(lease_until=clock(session)))
    reconciler.end_expired_leases(dependencies)


@pytest.mark.parametrize(("column", "value"), DAMAGES)
def test_it_costs_its_task_alone(tenant, new_node, plan, database, dependencies, column, value):
    node, task = new_node("n"), validated(dependencies, tenant)
    damage(database, task, column, value)
    plan()
    assert node.desired().placements == []
    expire(database, dependencies)
    with database.begin() as session:
        one = session.scalars(select(Node).where(Node.id == node.id)).one()
        assert (one.losing, one.rests_until, one.device_losses) == ([], None, {})
    shown = tenant.get(f"/v1/tasks/{task}").json()
    words = f"({column.class_.__tablename__}.{column.key}) cannot be read"
    assert words in shown["requeue_detail"]
    if column is Job.checkpoint:  # where it stood is unknown: the task waits without a node until that is repaired
        assert shown["status"] == "running"
    else:
        assert (shown["status"], shown["waiting"]["code"]) == ("paused", "paused")
        assert words in shown["waiting"]["sentence"]
    sound = validated(dependencies, tenant)
    plan()
    assert [placement.task_id for placement in live(database)] == [sound]
    damage(database, task, column, None)
    for step in reconciler.STEPS:
        step(dependencies)
    assert tenant.get(f"/v1/tasks/{task}").json()["status"] == "paused"
    assert tenant.post(f"/v1/tasks/{task}/resume").json()["status"] == "queued"


def test_a_sound_one_that_its_node_never_took_up_counts(tenant, new_node, plan, database, dependencies):
    new_node("n")
    validated(dependencies, tenant)
    plan()
    expire(database, dependencies)
    (node,) = rows(database, Node)
    assert len(node.losing) == 1


@pytest.mark.parametrize("value", [3, {"n": 3}])
def test_a_lost_executor_with_a_damaged_checkpoint_frees_its_devices(tenant, new_node, plan, database, dependencies, value):
    node, task = new_node("n"), validated(dependencies, tenant)
    plan()
    running = start(node, task)
    damage(database, task, Job.checkpoint, value)
    assert node.lost(running).status_code == 204
    assert live(database) == []
    assert "(jobs.checkpoint) cannot be read" in tenant.get(f"/v1/tasks/{task}").json()["requeue_detail"]


@pytest.mark.parametrize("value", [3, [[1]], {"n": 3}])
def test_a_task_ends_without_scores_that_cannot_be_read(tenant, new_node, plan, database, dependencies, caplog, value):
    node, task = new_node("n"), validated(dependencies, tenant)
    plan()
    running = start(node, task)
    damage(database, task, Task.base_scores, value)
    running.report(running.adapter(0, 1.0), completed(0), running.adapter(1, 1.1), completed(1))
    assert tenant.get(f"/v1/tasks/{task}").json()["status"] == "succeeded"
    assert "(tasks.base_scores) cannot be read" in caplog.text
