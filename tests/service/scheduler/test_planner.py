"""The planner on real rows: quotas, fair share and preemption, drains, releases and deadlines."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from contract.states import TaskStatus
from service.background.reconciler import replan_elapsed_delays
from service.database.engine import clock
from service.fleet.models import Node, Placement
from service.scheduler.core.fair_share import decayed, entered
from service.scheduler.planner import replan
from service.scheduler.state.usage_shares import ENTRY_SECONDS, shares
from service.tasks.models import Task
from tests.service.fleet.scripted import completed, points
from tests.service.scheduler.planned import start


@pytest.fixture
def set_rows(database):
    """Write straight into rows: `set_rows(Task, task_id, name="x")`."""

    def write(model, id, **values):
        with database.begin() as session:
            session.execute(update(model).where(model.id == id).values(**values))

    return write


@pytest.fixture
def ago(database):
    """A moment of the database's clock that lies so many seconds back."""

    def moment(seconds):
        with database.begin() as session:
            return clock(session) - timedelta(seconds=seconds)

    return moment


def waits(caller, task_id):
    return caller.get(f"/v1/tasks/{task_id}").json()["waiting"]


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_of_running_gpus_holds_and_says_so(tenant, admin, new_node, plan):
    node = new_node(slots=4)
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {"running_gpus": 2}})
    tasks = [tenant.task()["id"] for _ in range(3)] + [tenant.task(gpus=3)["id"]]
    plan()
    running = [placement.task_id for placement in node.desired().placements]
    assert len(running) == 2
    (third,) = set(tasks[:3]) - set(running)
    assert waits(tenant, third)["code"] == waits(tenant, tasks[3])["code"] == "waiting_for_quota"
    assert all(task in waits(tenant, third)["sentence"] for task in running)
    assert waits(tenant, tasks[3])["expected_start"] is None
    admin.request("PATCH", f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {}})
    plan()
    assert third in [placement.task_id for placement in node.desired().placements]


# ---- fair share ------------------------------------------------------------------------------------------------------


def test_use_is_the_sum_that_the_arithmetic_says(database, tenant, new_node, plan, set_rows, ago):
    """Placements of known times, against `decayed` and `entered` step by step."""
    node, half_life, now = new_node(slots=4), 3600.0, ago(0)
    spans = [(7000.0, 3000.0, 1), (2500.0, 500.0, 2)]
    for began, ended, gpus in spans:
        task = tenant.task(gpus=gpus)["id"]
        plan()
        placement = node.take(task).id
        set_rows(Placement, placement, created_at=now - timedelta(seconds=began), ended_at=now - timedelta(seconds=ended))
        set_rows(Task, task, status=TaskStatus.FAILED)
    use = 0.0
    for (began, ended, gpus), following in zip(spans, [2500.0, 0.0], strict=True):
        use = decayed(entered(use, gpus, ENTRY_SECONDS, half_life), gpus, began - ended, half_life)
        use = decayed(use, 0, ended - following, half_life)
    with database.begin() as session:
        (share,) = shares(session, now, half_life, {}, {tenant.tenant_id: 1})
    assert share.use["cpu"] == pytest.approx(use, rel=1e-3)


def test_who_has_used_less_goes_first_and_the_other_is_told(new_tenant, new_node, plan, again):
    node, heavy, light = new_node(slots=1), new_tenant(), new_tenant()
    first = heavy.task()["id"]
    plan()
    placement = start(node, first)
    second = heavy.task()["id"]
    plan()
    theirs = light.task()["id"]
    plan()
    said = waits(heavy, second)
    assert (said["code"], said["place"]) == ("fair_share", 2)
    assert theirs not in said["sentence"]
    assert waits(light, theirs)["place"] == 1
    placement.report(completed(0, loss=None, best_step=None), completed(1, loss=None, best_step=None))
    again()
    assert [placed.task_id for placed in node.desired().placements] == [theirs]


@pytest.fixture
def borrowed(new_tenant, new_node, plan, set_rows):
    """A node of four GPUs that one tenant holds alone, and a task of another that is owed two of them."""
    node, borrower, owner = new_node(slots=4), new_tenant(), new_tenant()
    tasks = []
    for priority in (5, 1, 3, 2):
        tasks.append(borrower.task(priority=priority)["id"])
        plan()
    held = {task: start(node, task) for task in tasks}
    preemptor = owner.task(gpus=2)["id"]
    plan()
    return node, borrower, owner, held, preemptor, tasks


def test_a_tenant_under_its_share_takes_gpus_back_from_the_biggest_borrower(
    borrowed, set_rows, again, plan, ago, database, new_tenant
):
    node, borrower, owner, held, preemptor, tasks = borrowed
    assert not any(placement.leave for placement in node.desired().placements), "not before the bound"
    set_rows(Task, preemptor, queued_at=ago(10_000))
    again()
    leaving = {placement.task_id for placement in node.desired().placements if placement.leave}
    assert leaving == {tasks[1], tasks[3]}, "the lowest priorities"
    said = waits(owner, preemptor)
    assert said["code"] == "waiting_for_capacity"
    assert f"CPU slots of {node.name} are being given back for it" in said["sentence"]
    again()
    assert {placement.task_id for placement in node.desired().placements if placement.leave} == leaving, "nobody else meanwhile"
    third = new_tenant().task()["id"]  # owed GPUs too, and yet not those that were promised
    plan()
    for task in leaving:
        held[task].report(points(0, [1, 2]), points(1, [1, 2]), held[task].checkpoint({0: 2, 1: 2}), {"kind": "detached"})
        plan()
    assert {placement.task_id for placement in node.desired().placements} == {tasks[0], tasks[2], preemptor}
    victim = borrower.get(f"/v1/tasks/{tasks[1]}").json()
    assert (victim["status"], victim["requeue_reason"], victim["progress"]["steps_done"]) == ("queued", "preempted", 4)
    assert "Preempted for another tenant's task, which needs 2 CPU slots" in victim["requeue_detail"]
    assert "your tenant held 4 CPU slots of the 2 it is owed" in victim["requeue_detail"]
    assert preemptor not in str(victim)
    assert third not in {placement.task_id for placement in node.desired().placements}


def test_a_tenant_takes_nothing_more_back_while_gpus_are_reserved_for_it(borrowed, set_rows, plan, again, ago):
    """They are those that it is owed, though it does not hold them yet."""
    node, _, owner, _, preemptor, tasks = borrowed
    second = owner.task()["id"]
    plan()
    set_rows(Task, preemptor, queued_at=ago(10_000))
    set_rows(Task, second, queued_at=ago(9_000))
    for _ in range(2):
        again()
        assert {placement.task_id for placement in node.desired().placements if placement.leave} == {tasks[1], tasks[3]}


def test_gpus_that_are_reserved_are_no_room_for_a_third_tenant(borrowed, new_tenant, set_rows, plan, again, ago):
    node, _, _, _, preemptor, tasks = borrowed
    set_rows(Task, preemptor, queued_at=ago(10_000))
    again()
    third = new_tenant().task()["id"]
    plan()
    set_rows(Task, third, queued_at=ago(9_000))
    again()
    assert {placement.task_id for placement in node.desired().placements if placement.leave} == set(tasks[1:])


@pytest.mark.parametrize("why", ["quarantined", "disk_full", "drained"])
def test_gpus_that_nobody_can_have_are_in_no_share(borrowed, new_node, set_rows, again, ago, why):
    """Four more that take nothing: what the borrower holds is all there is, and half of it is owed."""
    node, _, _, _, preemptor, tasks = borrowed
    other = new_node("ailing", slots=4)
    columns = {
        "quarantined": {"quarantined_at": ago(10), "rests_until": ago(-1000), "quarantine_reason": "it loses them"},
        "disk_full": {"waits_for": "a download waits", "waits_since": ago(10)},
        "drained": {"drained_at": ago(10)},
    }
    set_rows(Node, other.id, **columns[why])
    set_rows(Task, preemptor, queued_at=ago(10_000))
    again()
    assert {placement.task_id for placement in node.desired().placements if placement.leave} == {tasks[1], tasks[3]}


def test_a_borrower_that_says_nothing_loses_its_gpus_with_its_lease(borrowed, set_rows, again, rested, ago, dependencies):
    node, _, _, held, preemptor, tasks = borrowed
    set_rows(Task, preemptor, queued_at=ago(10_000))
    again()
    for task in (tasks[1], tasks[3]):
        assert node.lost(held[task]).status_code == 204
    rested()
    assert preemptor in {placement.task_id for placement in node.desired().placements}


def test_what_is_borrowed_is_left_alone_while_nobody_is_owed_it(borrowed, set_rows, again, ago):
    node, borrower, _, _, _, _ = borrowed
    mine = borrower.task()["id"]
    again()
    set_rows(Task, mine, queued_at=ago(10_000))
    again()
    assert not any(placement.leave for placement in node.desired().placements)


# ---- moments ---------------------------------------------------------------------------------------------------------


def test_a_task_starts_no_earlier_than_it_asks_to(tenant, new_node, plan, dependencies, database, set_rows):
    node = new_node()
    moment = datetime.now(UTC) + timedelta(hours=1)
    task = tenant.task(not_before=moment.isoformat())["id"]
    plan()
    assert node.desired().placements == []
    said = waits(tenant, task)
    assert (said["code"], datetime.fromisoformat(said["expected_start"])) == ("not_before", moment)
    replan_elapsed_delays(dependencies)
    assert plan() == 0, "nothing has changed"
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    with database.begin() as session:
        row = session.get_one(Task, task)
        row.spec, row.waiting = row.spec | {"not_before": past}, row.waiting | {"expected_start": past}
    dependencies.estimate_cache.clear()
    replan_elapsed_delays(dependencies)
    assert plan() >= 1
    assert node.take(task)


def test_a_deadline_that_will_be_missed_is_foretold(tenant, new_node, plan):
    node, first = new_node(), tenant.task()["id"]
    plan()
    node.take(first)
    soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    late = tenant.task(deadline=soon)["id"]
    plan()
    said = waits(tenant, late)
    assert said["late_seconds"] > 0
    assert "after its deadline" in said["sentence"]


def test_a_spec_whose_moments_are_in_disorder_is_refused(tenant):
    now = datetime.now(UTC)
    spec = tenant.spec(tenant.file(), not_before=(now + timedelta(hours=2)).isoformat(), deadline=now.isoformat())
    answer = tenant.post("/v1/tasks", json=spec)
    assert answer.status_code == 422
    assert "'deadline' does not lie after 'not_before'" in answer.text


# ---- robustness ------------------------------------------------------------------------------------------------------


def test_a_node_drained_while_the_plan_was_made_takes_nothing(dependencies, admin, tenant, new_node, plan, monkeypatch):
    node = new_node()
    task = tenant.task()["id"]
    thinking = replan.__globals__["solve"]

    def meanwhile(problem):
        admin.post(f"/v1/admin/nodes/{node.id}/drain")
        return thinking(problem)

    monkeypatch.setitem(replan.__globals__, "solve", meanwhile)
    plan()
    assert node.desired().placements == []
    assert waits(tenant, task)["code"] == "node_drained"
