"""A task whose row cannot be read: it alone says so, and every list and plan goes on with the others."""

import pytest
from sqlalchemy import update

from contract.states import TaskStatus
from service.background.reconciler import replan_elapsed_delays, replan_newly_readable_tasks
from service.scheduler.explain.reason_codes import Code
from service.tasks.models import Task
from service.tasks.plan_status.unplanned_reasons import ROW_UNREADABLE
from tests.service.fleet.fixtures import dependencies, new_node, nothing_left, plan
from tests.service.fleet.scripted import completed
from tests.service.scheduler.planned import start, validated

__all__ = ["dependencies", "new_node", "nothing_left", "plan"]

VALUES = [3, [[1]], {"n": 3}]
COLUMNS = ["labels", "spec", "spec_defaults", "selection", "waiting"]
NO_FAULT = [("spec", {"n": 3}), ("spec_defaults", {"n": 3})]  # of a document, which another version may have written
WAITS = dict.fromkeys(("place", "node", "expected_start", "expected_end", "late_seconds"))
WAITS |= {"code": "not_before", "sentence": "It starts later."}
DAMAGES = [(column, value) for column in COLUMNS for value in VALUES]
DAMAGES += [("waiting", WAITS | {"gpus": "many"}), ("waiting", WAITS | {"expected_end_interval": 5})]
DAMAGES += [("waiting", WAITS | {"expected_start": said}) for said in ("soon", "2027-01-31T12:00:00")]
UNREAD = [damage for damage in DAMAGES if damage not in NO_FAULT]
LISTS = [
    *("/v1/tasks", "/v1/tasks?label=a%3Db", "/v1/schedule", "/v1/adapters", "/v1/files", "/v1/usage"),
    *("/openai/v1/fine_tuning/jobs", "/openai/v1/models"),
]
OF_TASK = [
    *("/v1/tasks/{id}", "/v1/tasks/{id}/jobs", "/v1/tasks/{id}/plan-history", "/v1/tasks/{id}/evaluations"),
    *("/v1/tasks/{id}/mirrors", "/openai/v1/fine_tuning/jobs/{id}", "/openai/v1/fine_tuning/jobs/{id}/events"),
]
PAGES = [
    *("/tasks", "/cluster", "/adapters", "/usage", "/files", "/tasks/{id}", "/tasks/{id}/cancel", "/tasks/new?like={id}"),
    *("/compare?task={id}", "/tasks/{id}/curves"),
]


@pytest.fixture
def failing(tenant, admin, browser):
    """Of every list and every answer about a task to its owner, and of the lists of admins, those that fail."""

    def read(id):
        asked = {path: tenant for path in (*LISTS, *OF_TASK)} | dict.fromkeys(PAGES, browser)
        asked |= dict.fromkeys(["/v1/admin/autoscaling", "/metrics", "/v1/admin/nodes"], admin)
        answers = {path: caller.get(path.format(id=id)).status_code for path, caller in asked.items()}
        return {path: status for path, status in answers.items() if status != 200}

    return read


@pytest.mark.parametrize("status", [TaskStatus.QUEUED, TaskStatus.SUCCEEDED])
@pytest.mark.parametrize(("column", "value"), DAMAGES)
def test_it_is_told_and_others_are_listed(tenant, database, browser, damage, failing, column, value, status):
    good, bad = tenant.task(labels={"a": "b"})["id"], tenant.task(labels={"a": "b"})["id"]
    with database.begin() as session:
        session.execute(update(Task).where(Task.id == bad).values(status=status))
    damage(Task, column, value, Task.id == bad)
    assert failing(bad) == {}
    listed = {task["id"]: task for task in tenant.get("/v1/tasks").json()["data"]}
    assert set(listed) == {good, bad}
    alone = tenant.get(f"/v1/tasks/{bad}").json()
    assert alone["problems"] == listed[bad]["problems"]
    assert listed[good]["problems"] is None
    if (column, value) in UNREAD:
        (problem,) = alone["problems"]
        assert (problem["field"], problem["code"]) == (column, "unreadable")
        assert f"tasks.{column}" in problem["message"]
        assert f"tasks.{column}" in browser.get(f"/tasks/{bad}").text


@pytest.mark.parametrize(("column", "value"), DAMAGES)
def test_others_are_planned(dependencies, tenant, new_node, plan, damage, failing, caplog, column, value):
    node = new_node("n", slots=2)
    bad, sound = validated(dependencies, tenant), validated(dependencies, tenant)
    damage(Task, column, value, Task.id == bad)
    replan_elapsed_delays(dependencies)
    replan_newly_readable_tasks(dependencies)
    assert plan() == 1
    given = {placement.task_id for placement in node.desired().placements}
    assert sound in given
    assert (bad in given) == (column not in ("spec", "spec_defaults") or (column, value) == ("spec_defaults", {"n": 3}))
    assert failing(bad) == {}
    if bad not in given:
        shown = tenant.get(f"/v1/tasks/{bad}").json()
        assert (shown["status"], shown["waiting"]["code"]) == ("queued", "waiting_for_version")
        damaged = (column, value) in UNREAD
        words = f"(tasks.{column}) cannot be read, so no node" if damaged else "cannot read its spec"
        assert words in shown["waiting"]["sentence"]
        assert (f"task {bad} is left out of the plan" in caplog.text) == damaged
    assert tenant.post(f"/v1/tasks/{bad}/cancel").status_code == 200


@pytest.mark.parametrize("code", [Code.WAITING_FOR_VERSION, ROW_UNREADABLE])
@pytest.mark.usefixtures("nothing_left")
def test_a_plan_is_made_for_one_whose_row_was_repaired(dependencies, tenant, admin, plan, damage, code):
    """Also where the next release said why it waits."""
    task = validated(dependencies, tenant)
    assert plan() == 1
    assert len(admin.get("/v1/admin/autoscaling").json()["wanted"]) == 1
    damage(Task, "waiting", WAITS | {"code": code}, Task.id == task)
    assert admin.get("/v1/admin/autoscaling").json()["wanted"] == []
    assert plan() == 0
    replan_newly_readable_tasks(dependencies)
    assert plan() == 1


@pytest.mark.parametrize(("column", "value"), [damage for damage in DAMAGES if damage[1] != [[1]]])
def test_a_running_one_ends_with_its_adapter(tenant, new_node, plan, damage, failing, column, value):
    node, task = new_node("n"), tenant.task()["id"]
    plan()
    running = start(node, task)
    damage(Task, column, value, Task.id == task)
    assert [lease.placement_id for lease in node.leases(running.pulse()).leases] == [running.id]
    assert [placement.placement_id for placement in told(node.desired())] == [running.id]
    running.report(running.adapter(0, 1.0), completed(0), running.adapter(1, 1.1), completed(1))
    assert tenant.get(f"/v1/tasks/{task}").json()["status"] == "succeeded"
    assert tenant.get(f"/v1/tasks/{task}/adapter").status_code == 200
    assert failing(task) == {}
    damage(Task, column, value, Task.id == task)
    assert tenant.get(f"/v1/tasks/{task}/adapter").status_code == 200


def told(desired):
    """Of a node's desired state, the placements that it is to go on with."""
    return [*desired.placements, *desired.unchanged]
