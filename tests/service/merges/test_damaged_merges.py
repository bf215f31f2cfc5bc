"""A merge whose stored row is damaged is told to its owner, and ends nothing of other merges on its node."""

import json

import pytest
from sqlalchemy import text

from tests.service.merges.merging_node import call

VALUES = [3, {"n": 3}, [{"path": "x"}], [3]]


@pytest.fixture
def damage(database):
    def write(merged_id, column, value):
        with database.begin() as session:
            said = text(f"UPDATE merged_models SET {column} = CAST(:v AS jsonb) WHERE id = :id")
            session.execute(said, {"v": json.dumps(value), "id": merged_id})

    return write


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("column", ["adapter_files", "files"])
def test_files(tenant, merge, merging_node, given, damage, column, value):
    damaged, other = merge(tenant), merge(tenant)
    first, second = merging_node(), merging_node()
    (work,) = given(first)
    given(second)
    assert work.placement_id == damaged
    damage(damaged, column, value)
    assert first.desired().merges == []
    assert [one.placement_id for one in second.desired().merges] == [other]
    assert call(first, work, "GET", f"objects/{'0' * 64}").status_code == 404
    shown = {one["id"]: one for one in tenant.get("/v1/merged-models").json()["data"]}
    assert shown[other]["problems"] is None
    (problem,) = shown[damaged]["problems"]
    assert (problem["field"], problem["code"]) == (column, "unreadable")
    got = tenant.get(f"/v1/merged-models/{damaged}/files/model.safetensors")
    assert (got.status_code, got.json()["code"]) == ((404, "not_found") if column != "files" else (500, "value_unreadable"))


def test_one_that_waits_is_given_to_no_node(tenant, merge, merging_node, given, damage):
    damaged, other = merge(tenant), merge(tenant)
    damage(damaged, "adapter_files", 3)
    assert [one.placement_id for one in given(merging_node())] == [other]
    assert "(merged_models.adapter_files) cannot be read" in tenant.get(f"/v1/merged-models/{damaged}").json()["waits_for"]


@pytest.mark.parametrize("value", [3, "x", [["task_id"]], {"task_id": ["x"]}])
def test_a_lineage_is_left_out_of_the_readme(tenant, merge, merging_node, given, damage, value):
    merged = merge(tenant)
    damage(merged, "lineage", value)
    (work,) = given(merging_node())
    assert work.placement_id == merged
    assert "task_" not in work.readme
