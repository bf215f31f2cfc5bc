"""Several tasks are cancelled at once while others hold what that needs: who comes second waits, and neither fails. Two real
sessions."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from service.fleet.models import NODE_LOCK, Node, Placement
from service.tasks.models import Task
from tests.service.live_server import PATIENCE, until
from tests.service.lock_waits import waiting_for_locks
from tests.service.web.test_forms import signed  # noqa: F401  (a fixture)

TASK = select(Task.id)
PLACEMENT = select(Placement.id).join(Task, Task.id == Placement.task_id)


def lock_node(session, node_id):
    session.execute(select(Node.id).where(Node.id == node_id).with_for_update(**NODE_LOCK))


def statuses(tenant, ids):
    return {tenant.get(f"/v1/tasks/{id}").json()["status"] for id in ids}


@pytest.fixture
def pair(tenant, new_node, plan):
    """A node, and the ids of a batch and of its two tasks that run there."""
    node, file_id = new_node(slots=2), tenant.file()
    made = tenant.post("/v1/batches", json={"tasks": [tenant.spec(file_id, name=name) for name in "ab"]}).json()
    plan()
    assert len(node.desired().placements) == 2
    return node, made["id"], sorted(task["id"] for task in made["tasks"])


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(TASK.with_for_update(), id="report"),
        pytest.param(PLACEMENT.with_for_update(of=Placement), id="heartbeat"),
    ],
)
@pytest.mark.parametrize("by", ["batch", "list"])
def test_who_holds_the_last_task_or_placement_may_still_lock_the_node(tenant, signed, pair, database, held, by):  # noqa: F811
    node, batch_id, ids = pair

    def cancelled():
        if by == "batch":
            return tenant.post(f"/v1/batches/{batch_id}/cancel").status_code == 200
        return signed.post("/tasks/bulk/cancel", task=ids).status_code == 303

    with ThreadPoolExecutor(1) as other:
        with database.begin() as session:
            session.execute(held.where(Task.id == ids[-1]))
            done = other.submit(cancelled)
            until(lambda: waiting_for_locks(database))
            lock_node(session, node.id)
        assert done.result(PATIENCE)
    assert statuses(tenant, ids) == {"cancelled"}
    assert node.desired().placements == []


def test_nodes_are_locked_in_the_order_of_their_ids(tenant, signed, new_node, plan, database):  # noqa: F811
    """As planners lock them, whatever the order of the tasks that run there."""
    low = new_node(slots=1)
    before = tenant.task()["id"]
    plan()
    high = new_node(slots=1)
    first = tenant.task()["id"]
    plan()
    tenant.post(f"/v1/tasks/{before}/cancel")
    second = tenant.task()["id"]
    plan()
    assert [[one.task_id for one in node.desired().placements] for node in (low, high)] == [[second], [first]]
    assert low.id < high.id
    with ThreadPoolExecutor(1) as other:
        with database.begin() as session:
            lock_node(session, low.id)
            done = other.submit(signed.post, "/tasks/bulk/cancel", task=[first, second])
            until(lambda: waiting_for_locks(database))
            lock_node(session, high.id)
        assert done.result(PATIENCE).status_code == 303
    assert statuses(tenant, [first, second]) == {"cancelled"}
