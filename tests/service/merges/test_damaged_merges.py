"""A merge whose stored row is damaged is told to its owner, and ends nothing of other merges on its node."""

import pytest
from sqlalchemy import text

from service.merges.models import MergedModel
from tests.service.merges.merging_node import SHARD, call, file, report, upload

VALUES = [3, {"n": 3}, [{"path": "x"}], [3]]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("column", ["adapter_files", "files"])
def test_files(tenant, merge, merging_node, given, damage, column, value):
    damaged, other = merge(tenant), merge(tenant)
    first, second = merging_node(), merging_node()
    (work,) = given(first)
    given(second)
    assert work.placement_id == damaged
    damage(MergedModel, column, value, MergedModel.id == damaged)
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
    damage(MergedModel, "adapter_files", 3, MergedModel.id == damaged)
    assert [one.placement_id for one in given(merging_node())] == [other]
    assert "(merged_models.adapter_files) cannot be read" in tenant.get(f"/v1/merged-models/{damaged}").json()["waits_for"]


@pytest.mark.parametrize("value", [3, "x", [["task_id"]], {"task_id": ["x"]}])
def test_a_lineage_is_left_out_of_the_readme(tenant, merge, merging_node, given, damage, value):
    merged = merge(tenant)
    damage(MergedModel, "lineage", value, MergedModel.id == merged)
    (work,) = given(merging_node())
    assert work.placement_id == merged
    assert "task_" not in work.readme


def test_fields_of_a_newer_version_outlive_a_report(tenant, merge, merging_node, given, damage, database):
    merged, node = merge(tenant), merging_node()
    (work,) = given(node)
    newer = file("config.json", b"{}") | {"kind": {"of": "metadata"}}
    damage(MergedModel, "files", [newer], MergedModel.id == merged)
    assert upload(node, work, SHARD) == 200
    assert report(node, work, files=[file("model.safetensors", SHARD)], done=True) == (204, None)
    with database.begin() as session:
        stored = session.scalar(text("SELECT files FROM merged_models WHERE id = :id"), {"id": merged})
    assert stored == [newer, file("model.safetensors", SHARD)]
    shown = tenant.get(f"/v1/merged-models/{merged}").json()
    assert (shown["files"][0], shown["problems"]) == (file("config.json", b"{}"), None)
