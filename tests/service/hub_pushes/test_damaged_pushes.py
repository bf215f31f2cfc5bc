"""A push whose stored files are damaged fails with words, and its courier goes on."""

import json

import pytest
from sqlalchemy import text

from tests.service.hub_pushes.pushing import asked, new_name, seen


@pytest.mark.parametrize("value", [3, {"n": 3}, [{"path": "x"}], "x"])
def test_files(tenant, new_tenant, courier, pushable, database, value):
    other = new_tenant()
    damaged, sound = asked(tenant, pushable(tenant), new_name()), asked(other, pushable(other), new_name())
    with database.begin() as session:
        said = text("UPDATE hub_pushes SET files = CAST(:v AS jsonb) WHERE id = :id")
        session.execute(said, {"v": json.dumps(value), "id": damaged["id"]})
    assert seen(tenant, damaged)["problems"][0]["field"] == "files"
    assert courier.work_off_due() == 1
    assert (seen(other, sound)["status"], seen(other, sound)["problems"]) == ("succeeded", None)
    (failed,) = tenant.get("/v1/hub-pushes").json()["data"]
    assert (failed["status"], failed["files"], failed["error"]["code"]) == ("failed", [], "value_unreadable")
    assert "(hub_pushes.files) cannot be read" in failed["error"]["detail"]
