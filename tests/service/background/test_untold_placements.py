"""A task whose stored results cannot be read: no node can be told of its placement, and none is blamed for it."""

import pytest
from sqlalchemy import insert, select, update

from contract.compatibility.capabilities import understood
from service.adapters.models import Adapter
from service.background import reconciler
from service.database.engine import clock, new_id
from service.fleet.models import Node, Placement
from service.tasks.models import Job, MilestoneEvaluation, Task, TextEvaluation
from tests.service.fleet.scripted import completed, moved
from tests.service.fleet.test_text_evaluations import ASKED, placed, texts
from tests.service.scheduler.planned import live, rows, start, validated

__all__ = ["placed"]

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
    assert tenant.get(f"/v1/tasks/{task}").json()["status"] == ("queued" if column is Job.checkpoint else "paused")
    if column is not Job.checkpoint:
        assert tenant.post(f"/v1/tasks/{task}/resume").json()["status"] == "queued"


@pytest.mark.parametrize("value", [3, [[1]], {"rouge": 3}, {"rouge": ["x"]}])
@pytest.mark.parametrize("table", [TextEvaluation, MilestoneEvaluation])
def test_damaged_scores_of_texts_cost_their_task_alone(tenant, new_node, plan, database, dependencies, table, value):
    node = new_node("n", said={"capabilities": sorted(understood())})
    task = validated(dependencies, tenant, evaluation=ASKED, select_by="rouge")
    own = {"id": new_id("texts"), "job_id": None} if table is TextEvaluation else {"milestone": 2}
    with database.begin() as session:
        job = session.scalars(select(Job.id).where(Job.task_id == task)).first()
        rest = {"prompts": 1, "scores": {}, "samples": [], "notes": [], "tokens": 0, "seconds": 0.0}
        row = {"tenant_id": tenant.tenant_id, "task_id": task, "job_id": job, "step": 2, "prompt_scores": value, **rest, **own}
        session.execute(insert(table).values(row))
    plan()
    assert len(live(database)) == 1
    assert node.desired().placements == []
    expire(database, dependencies)
    assert live(database) == []
    shown = tenant.get(f"/v1/tasks/{task}").json()
    assert (shown["status"], shown["waiting"]["code"]) == ("paused", "paused")
    assert f"({table.__tablename__}.prompt_scores) cannot be read" in shown["waiting"]["sentence"]


def test_a_damaged_manifest_of_its_start_pauses_it(tenant, new_node, plan, database, dependencies):
    node, first = new_node("n"), validated(dependencies, tenant)
    plan()
    running = start(node, first)
    running.report(running.adapter(0, 1.0), completed(0), running.adapter(1, 1.1), completed(1))
    adapter = tenant.get(f"/v1/tasks/{first}").json()["winner"]["adapter_id"]
    task = validated(dependencies, tenant, warm_start={"adapter_id": adapter})
    plan()
    with database.begin() as session:
        session.execute(update(Adapter).where(Adapter.id == adapter).values(manifest={"n": 3}))
    assert node.desired().placements == []
    expire(database, dependencies)
    shown = tenant.get(f"/v1/tasks/{task}").json()
    assert (shown["status"], live(database)) == ("paused", [])
    assert "(adapters.manifest) cannot be read" in shown["waiting"]["sentence"]


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


@pytest.mark.parametrize("value", [3, {"rouge": ["x"]}])
def test_a_task_ends_without_scores_of_texts_that_cannot_be_read(placed, tenant, database, value):
    taken = placed(select_by="rouge")
    taken.report(moved(0, "warmup"), moved(1, "warmup"), texts(None, 0.0, 0.125), texts(0, 0.5, 0.5))
    with database.begin() as session:
        session.execute(update(TextEvaluation).values(prompt_scores=value))
    taken.report(taken.adapter(0, 1.0), completed(0), taken.adapter(1, 1.1), completed(1))
    shown = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert shown["status"] == "succeeded"
    assert "(text_evaluations.prompt_scores) cannot be read" in shown["selection"]["verdict"]
