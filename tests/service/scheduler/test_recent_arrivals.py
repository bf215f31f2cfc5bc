"""Expected arrivals on a real database: the latest arrivals as the planner reads them, and a task held back for them."""

from datetime import timedelta

from sqlalchemy import update

from service.database.engine import clock, new_id
from service.fleet.models import Placement
from service.scheduler.core.problem import Arrived
from service.scheduler.explain.reason_codes import Code
from service.scheduler.models import ThroughputProfile
from service.scheduler.state import snapshot
from service.tasks.models import Task


def recent(database, dependencies) -> tuple[Arrived, ...]:
    with database.begin() as session:
        return snapshot.read(session, dependencies).problem.recent


def arrived(database, node, task: str, seconds_ago: float, expected: float) -> None:
    """Make the row of a placement that has ended, of a task that was created then."""
    with database.begin() as session:
        now = clock(session)
        created = now - timedelta(seconds=seconds_ago)
        session.execute(update(Task).where(Task.id == task).values(created_at=created))
        session.add(
            Placement(
                id=new_id("placement"), task_id=task, node_id=node.id, device_indexes=[0], fence=0, created_at=created,
                lease_until=now, expected_seconds=expected, ended_at=now, end_reason="completed",
            )
        )  # fmt: skip


def steps_of_two_seconds(database) -> None:
    """A measured speed at which a task takes over a minute."""
    with database.begin() as session:
        measured = {"base_model": "small", "precision": "bf16", "device_type": "cpu", "tokens": 128, "rows": 0, "width": 1}
        session.add(ThroughputProfile(**measured, mean_tokens=100.0, log_seconds=0.7, variance=0.0, measured=8))


def test_arrivals_are_the_tasks_placed_lately_and_those_that_wait_each_once(database, dependencies, tenant, new_node, plan):
    node = new_node(slots=1)
    steps_of_two_seconds(database)
    pair = {tenant.task()["id"], tenant.task()["id"]}
    plan()
    (placed,) = (one.task_id for one in node.desired().placements)
    (waits,) = pair - {placed}
    arrived(database, node, placed, 5000, 7)
    arrived(database, node, waits, 2000, 7)
    third = tenant.task()["id"]
    plan()
    found = recent(database, dependencies)
    assert [each.gpus for each in found] == [1, 1, 1]
    assert found[0].ago >= 5000 > found[1].ago >= 2000 > found[2].ago
    assert found[0].seconds > 7, "its older placement counts"
    assert found[1].seconds == 7
    with database.begin() as session:
        queued = {task.id: task for task in snapshot.read(session, dependencies).problem.queued}
    assert found[2].seconds == queued[third].shortest
    assert all(task.waited >= 0 for task in queued.values())


def test_a_task_waits_for_shorter_ones_that_keep_arriving_and_its_owner_reads_why(
    database, dependencies, admin, new_node, plan
):
    before = [admin.task() for _ in range(12)]
    for task in before:
        assert admin.post(f"/v1/tasks/{task['id']}/cancel").status_code in (200, 202)
    node = new_node(slots=2)
    steps_of_two_seconds(database)
    running = admin.task()
    plan()
    long = admin.task()
    for task in before:  # from now on: however long it takes until the plan, none of them is old by then
        arrived(database, node, task["id"], -300, 1)
    plan()
    assert [one.task_id for one in node.desired().placements] == [running["id"]]
    waiting = admin.get(f"/v1/tasks/{long['id']}").json()["waiting"]
    assert waiting["code"] == Code.SHORTER_TASKS_EXPECTED
    assert "kept for shorter tasks" in waiting["sentence"]
    (newest, *_) = admin.get("/v1/admin/plans").json()["data"]
    assert newest["decision"]["held"] == [long["id"]]
