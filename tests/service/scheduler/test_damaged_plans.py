"""A plan, or a change of one, that is damaged: it is told, and ends no list of the others."""

import pytest

from service.scheduler.models import Plan, PlanChange
from tests.service.scheduler.planned import validated

VALUES = [3, [[1]], "x"]


@pytest.mark.parametrize("value", VALUES)
def test_a_change_of_a_tasks_plan(tenant, dependencies, plan, damage, value):
    task = validated(dependencies, tenant)
    plan()
    (before,) = tenant.get(f"/v1/tasks/{task}/plan-history").json()["data"]
    assert (before["said"]["code"], before["problems"]) == ("no_node_fits", None)
    damage(PlanChange, "said", value, PlanChange.task_id == task)
    answer = tenant.get(f"/v1/tasks/{task}/plan-history")
    assert answer.status_code == 200, answer.text
    (shown,) = answer.json()["data"]
    assert (shown["id"], shown["said"]) == (before["id"], {})
    (problem,) = shown["problems"]
    assert (problem["field"], problem["code"]) == ("said", "unreadable")
    assert "plan_changes.said" in problem["message"]


@pytest.mark.parametrize("column", ["problem", "decision"])
@pytest.mark.parametrize("value", VALUES)
def test_a_plan(tenant, admin, dependencies, plan, damage, database, column, value):
    validated(dependencies, tenant)
    plan()
    validated(dependencies, tenant)
    plan()
    listed = admin.get("/v1/admin/plans").json()["data"]
    damage(Plan, column, value, Plan.id == listed[0]["id"])
    answer = admin.get("/v1/admin/plans")
    assert answer.status_code == 200, answer.text
    shown = answer.json()["data"]
    assert shown[1:] == listed[1:]
    assert (shown[0][column], listed[1]["problems"]) == ({}, None)
    (problem,) = shown[0]["problems"]
    assert (problem["field"], problem["code"]) == (column, "unreadable")
    assert f"plans.{column}" in problem["message"]
