"""A push whose stored files are damaged fails with words, and its courier goes on."""

import pytest

from service.hub_pushes.models import HubPush
from tests.service.hub_pushes.pushing import asked, new_name, seen


@pytest.mark.parametrize("value", [3, {"n": 3}, [{"path": "x"}], "x"])
def test_files(tenant, new_tenant, courier, pushable, damage, value):
    other = new_tenant()
    damaged, sound = asked(tenant, pushable(tenant), new_name()), asked(other, pushable(other), new_name())
    damage(HubPush, "files", value, HubPush.id == damaged["id"])
    assert seen(tenant, damaged)["problems"][0]["field"] == "files"
    assert courier.work_off_due() == 1
    assert (seen(other, sound)["status"], seen(other, sound)["problems"]) == ("succeeded", None)
    (failed,) = tenant.get("/v1/hub-pushes").json()["data"]
    assert (failed["status"], failed["files"], failed["error"]["code"]) == ("failed", [], "value_unreadable")
    assert "(hub_pushes.files) cannot be read" in failed["error"]["detail"]


@pytest.mark.parametrize("value", [3, [3], {"code": 3, "detail": "x"}, {"code": "x"}, "x"])
def test_why_its_last_attempt_failed(tenant, pushable, damage, value):
    damaged, sound = (asked(tenant, pushable(tenant), new_name()) for _ in range(2))
    damage(HubPush, "error", value, HubPush.id == damaged["id"])
    listed = {one["id"]: one for one in tenant.get("/v1/hub-pushes").json()["data"]}
    assert listed[sound["id"]]["error"] is None
    assert listed[damaged["id"]]["error"]["code"] == "unreadable"
    assert "(hub_pushes.error: " in listed[damaged["id"]]["error"]["detail"]
